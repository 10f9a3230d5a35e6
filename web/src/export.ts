/** Exports: a view as PNG, SVG or JSON, the state as a link, and the page as one HTML file. */
import { paint, renderSvg, type Figure } from "./figures.js";
import { LIGHT } from "./palette.js";
import type { Store } from "./store.js";
import type { View } from "./views/base.js";

/** Resolution of a PNG file, relative to the screen. Figures for papers need more than the screen. */
const PNG_SCALE = 3;

function download(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Figures are exported in the light colors, because most papers and slides are. */
function renderPng(figure: Figure): Promise<Blob> {
  const canvas = document.createElement("canvas");
  paint(canvas, figure, LIGHT, PNG_SCALE);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The figure is too large for a PNG file. Export SVG."))), "image/png");
  });
}

export type ExportFormat = "png" | "svg" | "json" | "link" | "html";

export async function exportView(format: ExportFormat, view: View, store: Store): Promise<string> {
  const name = `regard-${store.state.tab}`;
  const figure = view.figure;
  switch (format) {
    case "png":
      if (!figure) return "This view has no drawing.";
      download(await renderPng(figure), `${name}.png`);
      return "PNG file saved.";
    case "svg":
      if (!figure) return "This view has no drawing.";
      download(new Blob([renderSvg(figure, LIGHT)], { type: "image/svg+xml" }), `${name}.svg`);
      return "SVG file saved.";
    case "json":
      download(new Blob([`${JSON.stringify(view.data, null, 1)}\n`], { type: "application/json" }), `${name}.json`);
      return "JSON file saved.";
    case "link":
      await navigator.clipboard.writeText(location.href);
      return "Link copied.";
    case "html":
      download(await store.client.exportPage({ ...store.describeRequest({ queries: true }), others: view.others, fragment: location.hash }), `${name}.html`);
      return "HTML file saved. It works offline.";
  }
}
