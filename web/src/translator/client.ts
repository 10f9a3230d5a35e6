/** Requests to the server that the page was loaded from. URLs are relative, so a proxy can serve the page in a folder. */
import type { Span } from "../words.js";

export interface Language {
  code: string;
  name: string;
  targets: string[];
}

export interface Model {
  name: string;
  kind: "translate" | "predict" | "caption" | "other";
}

export interface Settings {
  /** The largest number of characters of a text; −1 if there is no limit. */
  charLimit: number;
  keyRequired: boolean;
  filesTranslation: boolean;
  /** The extensions of documents, with the dot. */
  supportedFilesFormat: string[];
}

export interface Attention {
  source_tokens: string[];
  tokens: string[];
  weights: number[][];
}

/** A sentence and its translation. Offsets count characters, not code units. */
export interface Sentence {
  source: string;
  text: string;
  start: number;
  source_words: Span[];
  words: Span[];
  links: [number, number][];
  attention?: Attention | null;
}

export interface Translation {
  translatedText: string;
  alternatives?: string[];
  detectedLanguage?: { language: string; confidence: number };
  regard?: { sentences: Sentence[] };
}

/** The response of a model that does not translate. */
type Prediction = Partial<Sentence> & { text: string; alternatives?: { text: string }[] };

export interface RequestOptions {
  alternatives?: number;
  regard: { align: true; attention?: true };
}

export class Client {
  /** The API key; empty if the server requires none. */
  key = "";

  listLanguages(): Promise<Language[]> {
    return this.fetchJson("languages");
  }

  listModels(): Promise<Model[]> {
    return this.fetchJson("models");
  }

  readSettings(): Promise<Settings> {
    return this.fetchJson("frontend/settings");
  }

  translate(text: string, source: string, target: string, options: RequestOptions, signal: AbortSignal): Promise<Translation> {
    return this.fetchJson("translate", toJson({ q: text, source, target, format: "text", ...options }), signal);
  }

  /** Predict with a model that does not translate. The result has the form of a translation with one sentence. */
  async predict(model: string, text: string, options: RequestOptions, signal: AbortSignal): Promise<Translation> {
    const { predictions } = await this.fetchJson<{ predictions: Prediction[] }>("predict", toJson({ model, q: text, ...options }), signal);
    const prediction = predictions[0]!;
    const sentence = { source_words: [], words: [], links: [], ...prediction, source: text, start: 0 };
    return { ...toTranslation(prediction), regard: { sentences: [sentence] } };
  }

  /** Describe an image. */
  async caption(model: string, image: File, alternatives: number, signal: AbortSignal): Promise<Translation> {
    const form = toForm({ model, image, alternatives: String(alternatives) });
    return toTranslation(await this.fetchJson<Prediction>("caption", form, signal));
  }

  /** Translate a document, and download it: the server keeps it for some minutes only. */
  async translateFile(file: File, source: string, target: string): Promise<Blob> {
    const { translatedFileUrl } = await this.fetchJson<{ translatedFileUrl: string }>(
      "translate_file",
      toForm({ file, source, target }),
    );
    // The server may not know the name by which the browser reaches it.
    const name = translatedFileUrl.slice(translatedFileUrl.lastIndexOf("/") + 1);
    return (await this.fetch(`download_file/${name}`)).blob();
  }

  private async fetchJson<T>(path: string, body?: Body, signal?: AbortSignal): Promise<T> {
    const response = await this.fetch(path, body, signal);
    return (await response.json().catch((reason: unknown) => {
      throw describe(reason, "The response of the server is not valid JSON.");
    })) as T;
  }

  private async fetch(path: string, body?: Body, signal?: AbortSignal): Promise<Response> {
    const headers = { ...body?.headers, ...(this.key && { Authorization: `Bearer ${this.key}` }) };
    const options = { headers, signal: signal ?? null, ...(body && { method: "POST", body: body.content }) };
    const response = await fetch(path, options).catch((reason: unknown) => {
      throw describe(reason, "The server does not respond. Check that regard serve is still running.");
    });
    if (response.ok) return response;
    const { error } = (await response.json().catch(() => ({}))) as { error?: string };
    const wait = response.headers.get("Retry-After");
    const message = error ?? `The server returned the status ${response.status}.`;
    throw new Error(wait ? `${message} Try again in ${wait} s.` : message);
  }
}

/** Return an error with a message. If the request was aborted, return the reason itself. */
function describe(reason: unknown, message: string): unknown {
  return reason instanceof DOMException && reason.name === "AbortError" ? reason : new Error(message);
}

interface Body {
  content: string | FormData;
  headers: Record<string, string>;
}

const toJson = (value: unknown): Body => ({ content: JSON.stringify(value), headers: { "Content-Type": "application/json" } });

function toForm(fields: Record<string, string | File>): Body {
  const content = new FormData();
  for (const [name, value] of Object.entries(fields)) content.append(name, value);
  return { content, headers: {} };
}

const toTranslation = ({ text, alternatives }: Prediction): Translation => ({
  translatedText: text,
  alternatives: (alternatives ?? []).map((each) => each.text),
});
