/** Exports: a view as PNG, SVG or JSON, and the page with what it shows as one HTML file. */
import { nameCorpus, type EmbeddedData, type Result, type ResultRequest } from "./client.js";
import { isEqual } from "./edits.js";
import { paint, renderSvg, type Figure } from "./figures.js";
import { isDark, LIGHT } from "./palette.js";
import type { MetricsRequest, TraceRequest } from "./requests.js";
import { writeFragment } from "./state.js";
import type { Store, Visit } from "./store.js";
import type { Edit } from "./trace.js";

export function download(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Figures are exported in the light colors, because most papers and slides are. */
export function renderPng(figure: Figure, scale: number): Promise<Blob> {
  const canvas = document.createElement("canvas");
  paint(canvas, figure, LIGHT, scale);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The figure is too large for a PNG file. Export SVG."))), "image/png");
  });
}

export const createSvg = (figure: Figure): Blob => new Blob([renderSvg(figure, LIGHT)], { type: "image/svg+xml" });

export const createJson = (data: unknown): Blob => new Blob([`${JSON.stringify(data, null, 1)}\n`], { type: "application/json" });

/** What an exported page contains besides what the present tab shows. */
export interface PageChoice extends Pick<EmbeddedData, "title" | "caption" | "note"> {
  visits: readonly Visit[];
  /** Whether the rows of the test set are part of it. */
  corpus: boolean;
}

const OPEN_TAG = '<script type="application/json" id="explorer-data">';

/** Return the page as one file. What was computed for the chosen sources is copied, so it shows the same. */
export async function createPage(store: Store, choice: PageChoice): Promise<Blob> {
  const { client } = store;
  if (!client.isLive) return createBlob(`<!doctype html>${document.documentElement.outerHTML}`);
  const [head, tail] = splitOnce(await client.readEmptyPage(), OPEN_TAG);
  // No text in it can end the element.
  const data = JSON.stringify(await collectData(store, choice)).replaceAll("<", "\\u003c");
  return createBlob(head, OPEN_TAG, data, tail);
}

const createBlob = (...parts: string[]): Blob => new Blob(parts, { type: "text/html" });

function splitOnce(text: string, separator: string): [string, string] {
  const start = text.indexOf(separator);
  return [text.slice(0, start), text.slice(start + separator.length)];
}

async function collectData(store: Store, { visits, corpus, ...about }: PageChoice): Promise<EmbeddedData> {
  const traces = await collectTraces(store, visits);
  const corpora = new Map(corpus ? store.listCorpora().map((each) => [nameCorpus(store.describeCorpus(each.model.id)), each.corpus]) : []);
  const models = store.models.filter(({ id }) => traces.some(({ request }) => request.model === id) || corpora.has(nameCorpus(store.describeCorpus(id))));
  return {
    models,
    traces,
    results: collectResults(store, visits, traces, corpora.size > 0),
    cards: Object.fromEntries(await Promise.all(models.map(async ({ id }) => [id, await store.client.card(id)] as const))),
    corpora: Object.fromEntries(corpora),
    examples: visits.map(({ state }) => ({ label: store.describeSource(state), state })),
    fragment: writeFragment(store.state),
    theme: isDark() ? "dark" : "light",
    ...about,
  };
}

type Traces = EmbeddedData["traces"];

/**
 * Return what the views show of some predictions: themselves, their queries, and, computed already, the same source
 * with fewer edits or by other models.
 */
async function collectTraces(store: Store, visits: readonly Visit[]): Promise<Traces> {
  const traces = new Map<string, Traces[number]>();
  for (const visit of visits) {
    const add = ({ request, document }: Traces[number]): unknown => traces.set(JSON.stringify(request), { request: nameImage(visit, request), document });
    store.computed.filter(({ request }) => belongsTo(visit, request)).forEach(add);
    const { request } = visit;
    const needed = [request, { ...request, queries: true }, ...(visit.state.edits.length ? [{ ...request, edits: [] }] : [])];
    for (const each of needed) add({ request: each, document: await store.fetchDocument(each) });
  }
  return [...traces.values()];
}

function belongsTo({ request: shown, state }: Visit, request: TraceRequest): boolean {
  const known = new Set(state.edits.map((edit) => JSON.stringify(edit)));
  const edits = (request.edits ?? []) as readonly Edit[];
  return isEqual(request.source, shown.source) && isEqual(request.search, shown.search) && edits.every((edit) => known.has(JSON.stringify(edit)));
}

/** The trace contains the pixels of an image that was opened, so its file is replaced by its name. */
function nameImage<R extends TraceRequest | Exclude<ResultRequest, MetricsRequest>>({ state }: Visit, request: R): R {
  return "image" in request.source ? { ...request, source: { image: state.text } } : request;
}

/** Return the results for the chosen sources, and those for the corpus. */
function collectResults(store: Store, visits: readonly Visit[], traces: Traces, corpus: boolean): EmbeddedData["results"] {
  const effects = store.describeHeads().map((each) => JSON.stringify(each));
  return [...store.results].flatMap(([key, result]): { request: ResultRequest; result: Result }[] => {
    const request = JSON.parse(key) as ResultRequest;
    if (!("source" in request)) return corpus ? [{ request, result }] : [];
    const { source } = request;
    // What is explained is the text with its edits.
    const visit = visits.find((each) => isEqual(each.request.source, source)) ?? visits[0]!;
    const isShown = effects.includes(key) || isEqual(visit.request.source, source) || ("text" in source && traces.some(({ document }) => document.source.text === source.text));
    return isShown ? [{ request: nameImage(visit, request), result }] : [];
  });
}
