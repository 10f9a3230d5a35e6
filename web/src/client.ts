/** The data of the page: from the server, or from the documents inside an exported page. */
import { at } from "./arrays.js";
import type { Attribution } from "./attribution.js";
import type { HeadEffects } from "./heads.js";
import type { AttributionRequest, CorpusRequest, HeadsRequest, MetricsRequest, NeighborsRequest, TraceRequest } from "./requests.js";
import type { Example } from "./state.js";
import type { Mechanism, Role, TraceDocument } from "./trace.js";

export interface ModelSummary {
  id: string;
  name: string;
  architecture: string;
  source_kind: "text" | "image";
  parameters: number;
  step: number;
  metrics: Record<string, number> | null;
  attentions: (Partial<Mechanism> & { name: string })[];
  /** The split that examples are from: dev for a run without a test set; null if its data cannot be read. */
  split?: "test" | "dev" | null;
  examples: string[];
}

export interface ModelCard {
  settings: string;
  curves?: Series[];
  /** What training reported about the model. */
  warnings?: string[];
  metrics?: Record<string, number> | null;
  [field: string]: unknown;
}

/** A learning curve: pairs of a step and a value. */
export interface Series {
  name: string;
  /** Whether it was computed on the dev set. */
  validated?: boolean;
  /** The role of the attentions that it is the average of. */
  role?: Role | null;
  points: [number, number][];
}

/** A line of a stream: how much is done, from 0 to 1, or a part of the result. */
export type Streamed<Part> = { progress: number } | Part;

/** What is predicted: `total` rows, of `most` that can be, of a split of `size` pairs. Equal `pairs` are the same set. */
export interface CorpusHead {
  total: number;
  size: number;
  most: number;
  split: "test" | "dev";
  pairs: string;
}

export interface CorpusRow {
  /** The number of the pair, from 0. */
  index: number;
  source: string;
  prediction: string;
  reference: string;
  correct: boolean;
  /** The parts of the source that have no token. */
  unknown: string[];
  score: number | null;
  /** The geometric mean of the probabilities of the output tokens. */
  confidence: number;
  length: number;
  entropy: number | null;
  coverage: number | null;
}

/** The first predictions of a model for its test set (or its dev set). */
export interface Corpus extends CorpusHead {
  rows: CorpusRow[];
}

/** A metric of models on the same pairs: values with 95 % intervals, and as text. */
export interface CorpusMetric {
  metric: string;
  higher_is_better: boolean;
  models: {
    model: string;
    value: number;
    interval: [low: number, high: number];
    text: [value: string, low: string, high: string];
    /** The difference from the first model; null for itself. */
    difference: { text: [value: string, low: string, high: string]; p_value: number; significant: boolean } | null;
  }[];
}

export interface CorpusMetrics {
  rows: number;
  test: string;
  metrics: CorpusMetric[];
}

/** A training pair that is near to a source or to a state of the decoder. */
export interface Neighbor {
  number: number;
  source: string;
  target: string;
  similarity: number;
  /** The tokens of the target, and the index of the one that comes next in the state. */
  tokens?: string[];
  step?: number;
}

export const NEIGHBOR_KINDS = ["by_text", "by_encoder", "by_state"] as const;
export type NeighborKind = (typeof NEIGHBOR_KINDS)[number];

/** The nearest training pairs of each kind, of `size` pairs of which some were compared. */
export interface Neighbors extends Record<NeighborKind, Neighbor[]> {
  size: number;
  texts: number;
  pairs: number;
  states: number;
}

/** What is computed besides traces and corpora, and what requests it. */
export type ResultRequest = AttributionRequest | HeadsRequest | MetricsRequest | NeighborsRequest;
export type Result = Attribution | CorpusMetrics | HeadEffects | Neighbors;
/** The results that are streams. */
export type ResultPath = "attribution" | "heads" | "neighbors";

export interface Client {
  /** Whether the page can compute something new. An exported page cannot. */
  readonly isLive: boolean;
  /** The data of an exported page. */
  readonly saved?: EmbeddedData;
  /** What was read of test sets, by `nameCorpus`. */
  readonly corpora: ReadonlyMap<string, Corpus>;
  /** Whether the trace of a request can be shown. A server computes it, an exported page contains it. */
  canTrace(request: TraceRequest): boolean;
  listModels(): Promise<ModelSummary[]>;
  trace(request: TraceRequest, signal: AbortSignal): Promise<TraceDocument>;
  card(model: string): Promise<ModelCard>;
  streamResult(path: ResultPath, request: ResultRequest, signal: AbortSignal): AsyncIterable<Streamed<{ result: Result }>>;
  /** Yield the entry of `corpora` whenever rows were added to it. */
  streamCorpus(request: CorpusRequest, signal: AbortSignal): AsyncIterable<Corpus>;
  evaluateCorpus(request: MetricsRequest): Promise<CorpusMetrics>;
  /** Return the page as one file without data. */
  readEmptyPage(): Promise<string>;
}

/** Requests to the server that the page was loaded from. */
export class ServerClient implements Client {
  readonly isLive = true;
  readonly corpora = new Map<string, Corpus>();

  constructor(private readonly token: string) {}

  canTrace(): boolean {
    return true;
  }

  listModels(): Promise<ModelSummary[]> {
    return this.fetchJson("api/models");
  }

  trace(request: TraceRequest, signal: AbortSignal): Promise<TraceDocument> {
    return this.fetchJson("api/trace", request, signal);
  }

  card(model: string): Promise<ModelCard> {
    return this.fetchJson(`api/models/${encodeURIComponent(model)}/card`);
  }

  streamResult(path: ResultPath, request: ResultRequest, signal: AbortSignal): AsyncIterable<Streamed<{ result: Result }>> {
    return this.stream(`api/${path}`, request, signal);
  }

  async *streamCorpus(request: CorpusRequest, signal: AbortSignal): AsyncIterable<Corpus> {
    const key = nameCorpus(request);
    for await (const part of this.stream<CorpusHead | { rows: CorpusRow[] }>("api/corpus", request, signal)) {
      const known = this.corpora.get(key)?.rows ?? [];
      if ("rows" in part) for (const row of part.rows) known[row.index] = row;
      else this.corpora.set(key, { ...part, rows: known });
      yield this.corpora.get(key)!;
    }
  }

  evaluateCorpus(request: MetricsRequest): Promise<CorpusMetrics> {
    return this.fetchJson("api/corpus/metrics", request);
  }

  async readEmptyPage(): Promise<string> {
    return (await this.fetch("api/page")).text();
  }

  /** Yield the lines of a response. A failure is its last line, because the status was sent before. */
  private async *stream<T>(path: string, body: unknown, signal: AbortSignal): AsyncIterable<T> {
    for await (const line of readLines(await this.fetch(path, body, signal))) {
      const { error } = line as { error?: { message: string } };
      if (error) throw new Error(error.message);
      yield line as T;
    }
  }

  private async fetchJson<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
    return (await (await this.fetch(path, body, signal)).json()) as T;
  }

  private async fetch(path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    let options: RequestInit = { headers };
    if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      options = { method: "POST", headers, body: JSON.stringify(body) };
    }
    const response = await fetch(path, { ...options, signal: signal ?? null }).catch((reason: unknown) => {
      if (reason instanceof DOMException && reason.name === "AbortError") throw reason;
      throw new Error("The server does not respond. Check that regard explore is still running, then try again.");
    });
    if (!response.ok) throw new Error(await readError(response));
    return response;
  }
}

async function readError(response: Response): Promise<string> {
  const body: unknown = await response.json().catch(() => null);
  const message = (body as { error?: { message?: string } } | null)?.error?.message;
  return message ?? `The server answered with the status ${response.status}.`;
}

/** Yield the JSON values of a response with one value per line. */
async function* readLines(response: Response): AsyncIterable<unknown> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = lines.pop()!;
      for (const line of lines) if (line.trim()) yield JSON.parse(line);
      if (done) break;
    }
    if (rest.trim()) yield JSON.parse(rest);
  } finally {
    // Who reads the lines may need no more of them: the server stops. A stream that has failed cannot be cancelled.
    reader.cancel().catch(() => undefined);
  }
}

/** A model of the gallery: its mechanism, the settings that select it, and the attention to show. */
export interface GalleryEntry {
  model: string;
  equation: string;
  citation: string;
  description: string;
  settings: string;
  role: Role;
}

/** What an exported page contains. */
export interface EmbeddedData {
  models: ModelSummary[];
  traces: { request: TraceRequest; document: TraceDocument }[];
  cards?: Record<string, ModelCard>;
  results?: { request: ResultRequest; result: Result }[];
  corpora?: Record<string, Corpus>;
  gallery?: readonly GalleryEntry[];
  /** The predictions that the reader can choose from. */
  examples?: Example[];
  /** The state that the page opens with, and its colors. */
  fragment?: string;
  theme?: string;
  /** What the author wrote about it. */
  title?: string;
  caption?: string;
  note?: string;
}

/** The documents inside an exported page. It makes no request. */
export class EmbeddedClient implements Client {
  readonly isLive = false;
  readonly corpora: ReadonlyMap<string, Corpus>;

  constructor(readonly saved: EmbeddedData) {
    this.corpora = new Map(Object.entries(saved.corpora ?? {}));
  }

  async listModels(): Promise<ModelSummary[]> {
    return this.saved.models;
  }

  /** A document with queries also has everything else, but its weights are not rounded. */
  private find(request: TraceRequest): TraceDocument | undefined {
    const key = describeRequest(request);
    const found = this.saved.traces.filter((entry) => describeRequest(entry.request) === key);
    return (found.find((entry) => Boolean(entry.request.queries) === Boolean(request.queries)) ?? found[0])?.document;
  }

  canTrace(request: TraceRequest): boolean {
    return this.find(request) !== undefined;
  }

  async trace(request: TraceRequest): Promise<TraceDocument> {
    const document = this.find(request);
    if (!document) throw reportMissing("this source");
    return document;
  }

  async card(model: string): Promise<ModelCard> {
    const card = this.saved.cards?.[model];
    if (!card) throw reportMissing("the settings of the model");
    return card;
  }

  async *streamResult(): AsyncIterable<never> {
    throw reportMissing("this result");
  }

  async *streamCorpus(): AsyncIterable<never> {
    throw reportMissing("these predictions");
  }

  async evaluateCorpus(): Promise<never> {
    throw reportMissing("the metrics of these pairs");
  }

  async readEmptyPage(): Promise<string> {
    throw new Error("An exported page cannot be exported again with other data. Save a copy of it.");
  }
}

/** The error of an exported page without a result. */
const reportMissing = (what: string): Error => new Error(`This file does not contain ${what}. Run regard explore to compute more.`);

/** What identifies a corpus: a model and a search. */
export const nameCorpus = ({ model, search }: CorpusRequest): string => JSON.stringify([model, search?.beam]);

/** What identifies a trace, except whether it contains queries. An exported page identifies an image by its name. */
const describeRequest = ({ model, source, edits, search }: TraceRequest): string => JSON.stringify([model, source, edits ?? [], search?.beam]);

/** Return the client of this page: embedded documents, if there are any, otherwise the server. */
export function createClient(): Client {
  const element = document.getElementById("explorer-data");
  if (element) {
    const data = JSON.parse(element.textContent!) as EmbeddedData;
    // The file of a trace contains its document in an element of its own.
    const trace = document.getElementById("trace");
    if (trace) at(data.traces, 0).document = JSON.parse(trace.textContent!) as TraceDocument;
    return new EmbeddedClient(data);
  }
  return new ServerClient(new URLSearchParams(location.search).get("token") ?? "");
}
