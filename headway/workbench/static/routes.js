// Every view: the first word of its address, its label in the navigation bar, and its file.

export const ROUTES = [
  { path: "runs", label: "Runs", load: () => import("./views/runs.js") },
  { path: "run", under: "runs", load: () => import("./views/run.js") },
  { path: "compare", under: "runs", load: () => import("./views/compare.js") },
  { path: "studies", label: "Studies", load: () => import("./views/studies.js") },
  { path: "study", under: "studies", load: () => import("./views/study.js") },
  { path: "report", under: "studies", load: () => import("./views/report.js") },
  { path: "cases", label: "Cases", load: () => import("./views/cases.js") },
  { path: "case", under: "cases", load: () => import("./views/case.js") },
  { path: "look", label: "Look", load: () => import("./views/look.js") },
  { path: "change", label: "Change", load: () => import("./views/change.js") },
  { path: "solve", label: "Solve", load: () => import("./views/solve.js") },
  { path: "jobs", label: "Jobs", load: () => import("./views/jobs.js") },
  { path: "program", label: "API", load: () => import("./views/program.js") },
];
