// Shows the value under the pointer. The page works without it.
(() => {
  const page = document.getElementById("PAGE");
  const { maps, tokens } = JSON.parse(page.querySelector("script[type='application/json']").textContent);
  const note = page.querySelector(".under-pointer");
  const numbers = maps.map(({ data }) => new Int16Array(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)).buffer));
  page.addEventListener("mousemove", (event) => {
    const image = event.target.closest("image[data-map]");
    note.hidden = !image;
    if (!image) return;
    const { title, rows, columns, say } = maps[image.dataset.map];
    const box = image.getBoundingClientRect();
    const at = (where, from, size, n) => Math.min(n - 1, Math.max(0, Math.floor((n * (where - from)) / size)));
    const [names, others] = [tokens[rows], tokens[columns]];
    const i = at(event.clientY, box.top, box.height, names.length);
    const j = at(event.clientX, box.left, box.width, others.length);
    const value = numbers[image.dataset.map][i * others.length + j] / 32767;
    note.textContent = `${title}\n${names[i]} (${i}) → ${others[j]} (${j})\n${say} ${value.toFixed(4)}`;
    note.style.left = `${Math.max(0, Math.min(event.clientX + 14, window.innerWidth - note.offsetWidth - 8))}px`;
    note.style.top = `${Math.max(0, Math.min(event.clientY + 14, window.innerHeight - note.offsetHeight - 8))}px`;
  });
  page.addEventListener("mouseleave", () => (note.hidden = true));
})();
