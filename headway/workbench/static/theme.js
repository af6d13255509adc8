// Sets the light or dark theme before anything is drawn, if the user has chosen one.
try {
  const chosen = localStorage.getItem("headway-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* storage is disabled */ }
