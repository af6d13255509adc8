// Style sheets of single views, loaded with them to keep the first page small.

const loaded = new Map();

export function styles(address) {
  if (!loaded.has(address)) {
    loaded.set(address, new Promise((resolve) => {
      const link = document.createElement("link");
      Object.assign(link, { rel: "stylesheet", href: address, onload: resolve, onerror: resolve });
      document.head.append(link);
    }));
  }
  return loaded.get(address);
}
