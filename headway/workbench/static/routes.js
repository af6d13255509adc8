// Every view: the first word of its address, what it is called above, and the file that shows it.

export const ROUTES = [
  { path: "runs", label: "Runs", load: () => import("./views/runs.js") },
  { path: "run", under: "runs", load: () => import("./views/run.js") },
  { path: "compare", under: "runs", load: () => import("./views/compare.js") },
];
