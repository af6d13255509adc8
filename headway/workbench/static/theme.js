// Before anything is drawn: light or dark, as the reader chose here, else as their system has it.
try {
  const chosen = localStorage.getItem("headway-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing */ }
