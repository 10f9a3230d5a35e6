/** The data of the page: from the server, or from the documents inside an exported page. */
import { at } from "./arrays.js";
import type { Attribution } from "./attribution.js";
import type { AttributionRequest, CorpusRequest, ExportRequest, TraceRequest } from "./requests.js";
import type { Mechanism, TraceDocument } from "./trace.js";

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
  metrics?: Record<string, number> | null;
  [field: string]: unknown;
}

/** A learning curve: pairs of a step and a value. */
export interface Series {
  name: string;
  points: [number, number][];
}

/** A line of a stream: how much is done, from 0 to 1, or a part of the result. */
export type Streamed<Part> = { progress: number } | Part;

export interface CorpusRow {
  index: number;
  source: string;
  prediction: string;
  reference: string;
  score: number | null;
  length: number;
  entropy: number | null;
  coverage: number | null;
}

export interface Client {
  /** Whether the page can compute something new. An exported page cannot. */
  readonly isLive: boolean;
  listModels(): Promise<ModelSummary[]>;
  trace(request: TraceRequest, signal: AbortSignal): Promise<TraceDocument>;
  card(model: string): Promise<ModelCard>;
  streamAttribution(request: AttributionRequest, signal: AbortSignal): AsyncIterable<Streamed<{ result: Attribution }>>;
  streamCorpus(request: CorpusRequest, signal: AbortSignal): AsyncIterable<Streamed<{ row: CorpusRow } | { total: number }>>;
  exportPage(request: ExportRequest): Promise<Blob>;
}

/** Requests to the server that the page was loaded from. */
export class ServerClient implements Client {
  readonly isLive = true;

  constructor(private readonly token: string) {}

  listModels(): Promise<ModelSummary[]> {
    return this.fetchJson("api/models");
  }

  trace(request: TraceRequest, signal: AbortSignal): Promise<TraceDocument> {
    return this.fetchJson("api/trace", request, signal);
  }

  card(model: string): Promise<ModelCard> {
    return this.fetchJson(`api/models/${encodeURIComponent(model)}/card`);
  }

  streamAttribution(request: AttributionRequest, signal: AbortSignal): AsyncIterable<Streamed<{ result: Attribution }>> {
    return this.stream("api/attribution", request, signal);
  }

  streamCorpus(request: CorpusRequest, signal: AbortSignal): AsyncIterable<Streamed<{ row: CorpusRow } | { total: number }>> {
    return this.stream("api/corpus", request, signal);
  }

  async exportPage(request: ExportRequest): Promise<Blob> {
    return (await this.fetch("api/export", request)).blob();
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
  for (;;) {
    const { done, value } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop()!;
    for (const line of lines) if (line.trim()) yield JSON.parse(line);
    if (done) break;
  }
  if (rest.trim()) yield JSON.parse(rest);
}

/** What an exported page contains. */
export interface EmbeddedData {
  models: ModelSummary[];
  traces: { request: TraceRequest; document: TraceDocument }[];
  cards?: Record<string, ModelCard>;
  fragment?: string;
}

/** The documents inside an exported page. It makes no request. */
export class EmbeddedClient implements Client {
  readonly isLive = false;

  constructor(readonly data: EmbeddedData) {}

  async listModels(): Promise<ModelSummary[]> {
    return this.data.models;
  }

  async trace(request: TraceRequest): Promise<TraceDocument> {
    const key = describeRequest(request);
    const candidates = this.data.traces.filter((entry) => describeRequest(entry.request) === key);
    const found = candidates.find((entry) => entry.request.queries) ?? candidates[0];
    if (!found) throw new Error("This file contains other sentences only. Run regard explore to compute new ones.");
    return found.document;
  }

  async card(model: string): Promise<ModelCard> {
    const card = this.data.cards?.[model];
    if (!card) throw new Error("This file does not contain the settings of the model.");
    return card;
  }

  async *streamAttribution(): AsyncIterable<never> {
    throw new Error("This file does not contain attributions. Run regard explore to compute them.");
  }

  async *streamCorpus(): AsyncIterable<never> {
    throw new Error("This file does not contain a corpus. Run regard explore to read one.");
  }

  async exportPage(): Promise<Blob> {
    return new Blob([`<!doctype html>${document.documentElement.outerHTML}`], { type: "text/html" });
  }
}

/**
 * What identifies a trace. An exported page contains queries or not, so they do not count. It contains one image only,
 * whose file the page does not know.
 */
const describeRequest = ({ model, source, edits, search }: TraceRequest): string =>
  JSON.stringify([model, "text" in source ? source.text : "", edits ?? [], search?.beam]);

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
