/** What the page shows: the text and its translation, documents, and failures. A new request replaces the previous one. */
import { alignText, weighWords, type AlignedText, type WordWeights } from "./alignment.js";
import type { Client, Language, Model, Sentence, Settings, Translation } from "./client.js";

export const AUTO = "auto";
/** How long the page waits for the next key before it translates, in milliseconds. */
export const PAUSE = 300;
const ALTERNATIVES = 3;
/** A longer text is not part of the URL. */
const MAX_URL_TEXT = 2000;

/** What is translated. It is the fragment of the URL, so that a link opens the same page. */
export interface Input {
  /** A model that does not translate; empty for translation. */
  model: string;
  source: string;
  target: string;
  text: string;
}

/** The last result. It remains visible while a request is made, or after one has failed. */
export interface Result {
  input: Input;
  /** The best prediction with its words, and the others. */
  best: AlignedText;
  alternatives: string[];
  /** Which of them is shown: 0 for the best. */
  shown: number;
  detected: { language: string; confidence: number } | null;
}

/** The weights of a word of the result. */
export interface Weights {
  word: number;
  sentence: number;
  values: WordWeights | null;
}

/** A document, and the state of its translation. */
export interface TranslatedFile {
  file: File;
  source: string;
  target: string;
  state: "waiting" | "done" | "failed";
  /** The URL of the translation, or the reason why it failed. */
  outcome: string;
}

export interface Failure {
  message: string;
  retry: () => void;
}

/** A word of the source or of the result, by number. */
export interface HoveredWord {
  side: "source" | "result";
  word: number;
}

export class Store extends EventTarget {
  languages: Language[] = [];
  models: Model[] = [];
  settings: Settings = { charLimit: -1, keyRequired: false, filesTranslation: false, supportedFilesFormat: [] };
  input: Input;
  image: File | null = null;
  result: Result | null = null;
  weights: Weights | null = null;
  hovered: HoveredWord | null = null;
  files: TranslatedFile[] = [];
  failure: Failure | null = null;
  isLoading = false;
  /** What screen readers announce. */
  announcement = "";
  private timer: ReturnType<typeof setTimeout> | undefined;
  private request: AbortController | null = null;
  private weightRequest: AbortController | null = null;
  /** The attention weights of sentences of the present result, by number. */
  private readonly details = new Map<number, Sentence>();

  constructor(readonly client: Client, input: Partial<Input> = {}) {
    super();
    this.input = { model: "", source: "", target: "", text: "", ...input };
  }

  /** Read what the server offers. */
  async load(): Promise<void> {
    this.failure = null;
    try {
      [this.languages, this.models, this.settings] = await Promise.all([
        this.client.listLanguages(),
        this.client.listModels(),
        this.client.readSettings(),
      ]);
    } catch (reason) {
      this.fail(reason, () => void this.load());
      return;
    }
    this.change({});
  }

  /** The models that can be selected besides translation. */
  get otherModels(): Model[] {
    return this.models.filter(({ kind }) => kind === "predict" || kind === "caption");
  }

  get kind(): "translate" | "predict" | "caption" {
    const found = this.otherModels.find(({ name }) => name === this.input.model);
    return found?.kind === "predict" || found?.kind === "caption" ? found.kind : "translate";
  }

  get sources(): Language[] {
    return this.languages.filter(({ targets }) => targets.length > 0);
  }

  /** The languages that the source can be translated to. */
  get targets(): Language[] {
    const codes = new Set(this.sources.filter(({ code }) => [AUTO, code].includes(this.input.source)).flatMap(({ targets }) => targets));
    return this.languages.filter(({ code }) => codes.has(code));
  }

  get length(): number {
    return [...this.input.text].length;
  }

  get isTooLong(): boolean {
    return this.settings.charLimit >= 0 && this.length > this.settings.charLimit;
  }

  get needsKey(): boolean {
    return this.settings.keyRequired && !this.client.key;
  }

  /** The pair of languages after a swap; null if there is no model for it. */
  get swapped(): { source: string; target: string } | null {
    const { source, target } = this.input;
    const known = source === AUTO ? this.result?.detected?.language : source;
    return known && this.sources.some((each) => each.code === target && each.targets.includes(known)) ? { source: target, target: known } : null;
  }

  /** Whether the result belongs to an earlier input. */
  get isOutdated(): boolean {
    return this.result !== null && !isSame(this.result.input, this.input);
  }

  /** The highlighted words of a side: the word under the pointer, or the words that are aligned with it. */
  findHighlighted(side: HoveredWord["side"]): readonly number[] {
    const { hovered, result } = this;
    if (!hovered || !result || result.shown > 0) return [];
    if (hovered.side === side) return [hovered.word];
    return (side === "result" ? result.best.toWords : result.best.toSource)[hovered.word] ?? [];
  }

  /** The URL of the explorer with the sentence of the selected word, or the first one; null without a sentence. */
  get explorer(): string | null {
    const { result } = this;
    const sentence = result?.best.sentences[this.weights?.sentence ?? 0];
    // A link cannot contain a key.
    if (!result || !sentence || this.settings.keyRequired) return null;
    const { model, source, target } = result.input;
    const fields: Record<string, string> = model ? { model } : { source: result.detected?.language ?? source, target };
    return `explore?${new URLSearchParams({ q: sentence.source, ...fields })}`;
  }

  /** Change the input, and translate after a pause, or at once. */
  change(change: Partial<Input>, pause = 0): void {
    this.input = this.complete({ ...this.input, ...change });
    clearTimeout(this.timer);
    this.request?.abort();
    this.isLoading = false;
    this.notify();
    if (pause) this.timer = setTimeout(() => void this.run(), pause);
    else void this.run();
  }

  setKey(key: string): void {
    this.client.key = key;
    void this.run();
  }

  swap(): void {
    const { swapped, result } = this;
    if (!swapped) return;
    const text = result && !this.isOutdated && result.best.text ? this.shownText : this.input.text;
    this.change({ ...swapped, text });
  }

  get shownText(): string {
    const { result } = this;
    if (!result) return "";
    return result.shown ? result.alternatives[result.shown - 1]! : result.best.text;
  }

  /** Show the best prediction, or one of the others. */
  show(index: number): void {
    this.result = { ...this.result!, shown: index };
    this.clearWeights();
    this.hovered = null;
    this.announce(this.shownText);
  }

  openImage(image: File): void {
    this.image = image;
    this.change({ text: image.name });
  }

  /** Compute the result of the present input. */
  async run(): Promise<void> {
    clearTimeout(this.timer);
    this.request?.abort();
    this.isLoading = false;
    const { input, image, kind } = this;
    const isEmpty = kind === "caption" ? image === null : !input.text.trim();
    if (isEmpty || this.isTooLong || this.needsKey) {
      this.failure = isEmpty ? null : this.isTooLong ? this.describeLength() : { message: "This server requires an API key. Enter it above.", retry: () => void this.run() };
      if (isEmpty) this.forget();
      this.notify();
      return;
    }
    const request = new AbortController();
    this.request = request;
    this.isLoading = true;
    this.notify();
    try {
      const translation = await this.compute(input, image, kind, request.signal);
      if (this.request !== request || request.signal.aborted) return;
      this.isLoading = false;
      this.failure = null;
      this.receive(input, translation);
    } catch (reason) {
      if (this.request === request && !request.signal.aborted) this.fail(reason, () => void this.run());
    }
  }

  hover(hovered: HoveredWord | null): void {
    if (hovered?.side === this.hovered?.side && hovered?.word === this.hovered?.word) return;
    this.hovered = hovered;
    this.notify();
  }

  /** Show the weights of a word of the result, or hide them if they are shown. */
  async weigh(word: number): Promise<void> {
    const { result } = this;
    if (!result || result.shown > 0 || this.weights?.word === word) {
      this.clearWeights();
      this.notify();
      return;
    }
    const sentence = result.best.sentences.findLastIndex(({ firstWord }) => firstWord <= word);
    const placed = result.best.sentences[sentence]!;
    this.weightRequest?.abort();
    const request = new AbortController();
    this.weightRequest = request;
    this.weights = { word, sentence, values: null };
    this.notify();
    try {
      const details = this.details.get(sentence) ?? (await this.readWeights(result, placed.source, request.signal));
      if (request.signal.aborted) return;
      this.details.set(sentence, details);
      const values = details.attention ? weighWords(details.attention, details, word - placed.firstWord) : null;
      if (!values) throw new Error("There are no attention weights for this word.");
      this.weights = { word, sentence, values };
      this.notify();
    } catch (reason) {
      if (request.signal.aborted) return;
      this.weights = null;
      this.fail(reason, () => void this.weigh(word));
    }
  }

  /** Translate documents, one after the other. */
  async translateFiles(files: Iterable<File>): Promise<void> {
    const { source, target } = this.input;
    for (const file of files) {
      const entry: TranslatedFile = { file, source, target, state: "waiting", outcome: "" };
      this.files = [...this.files, entry];
      await this.translateFile(entry);
    }
  }

  async translateFile(entry: TranslatedFile): Promise<void> {
    const formats = this.settings.supportedFilesFormat;
    entry.state = "waiting";
    this.notify();
    try {
      if (!formats.some((extension) => entry.file.name.toLowerCase().endsWith(extension)))
        throw new Error(`This type of document is not supported. Use one of: ${formats.join(", ")}.`);
      entry.outcome = URL.createObjectURL(await this.client.translateFile(entry.file, entry.source, entry.target));
      entry.state = "done";
      this.announce(`${entry.file.name} is translated.`);
    } catch (reason) {
      entry.outcome = (reason as Error).message;
      entry.state = "failed";
      this.announce(`${entry.file.name} is not translated. ${entry.outcome}`);
    }
  }

  announce(text: string): void {
    this.announcement = text;
    this.notify();
  }

  notify(): void {
    this.dispatchEvent(new Event("change"));
  }

  private compute(input: Input, image: File | null, kind: Store["kind"], signal: AbortSignal): Promise<Translation> {
    if (kind === "caption") return this.client.caption(input.model, image!, ALTERNATIVES, signal);
    const options = { alternatives: ALTERNATIVES, regard: { align: true } } as const;
    if (kind === "predict") return this.client.predict(input.model, input.text, options, signal);
    return this.client.translate(input.text, input.source, input.target, options, signal);
  }

  private async readWeights({ input, detected }: Result, sentence: string, signal: AbortSignal): Promise<Sentence> {
    const options = { alternatives: ALTERNATIVES, regard: { align: true, attention: true } } as const;
    const source = detected?.language ?? input.source;
    const { regard } = input.model
      ? await this.client.predict(input.model, sentence, options, signal)
      : await this.client.translate(sentence, source, input.target, options, signal);
    return regard!.sentences[0]!;
  }

  private receive(input: Input, { translatedText, alternatives, detectedLanguage, regard }: Translation): void {
    this.forget();
    this.result = {
      input,
      best: alignText(input.text, translatedText, regard?.sentences ?? []),
      alternatives: alternatives ?? [],
      shown: 0,
      detected: detectedLanguage ?? null,
    };
    this.announce(translatedText);
  }

  private forget(): void {
    this.result = null;
    this.hovered = null;
    this.details.clear();
    this.clearWeights();
  }

  private clearWeights(): void {
    this.weightRequest?.abort();
    this.weights = null;
  }

  private describeLength(): Failure {
    const { charLimit } = this.settings;
    return { message: `The text has ${this.length} characters. The limit is ${charLimit}. Shorten the text.`, retry: () => void this.run() };
  }

  private fail(reason: unknown, retry: () => void): void {
    this.isLoading = false;
    this.failure = { message: (reason as Error).message, retry };
    this.notify();
  }

  /** Replace models and languages that the server does not have. */
  private complete(input: Input): Input {
    if (!this.languages.length && !this.models.length) return input;
    const others = this.otherModels.map(({ name }) => name);
    const model = others.includes(input.model) ? input.model : this.sources.length ? "" : (others[0] ?? "");
    const source = [AUTO, ...this.sources.map(({ code }) => code)].includes(input.source) ? input.source : (this.sources[0]?.code ?? "");
    const targets = this.sources.filter(({ code }) => [AUTO, code].includes(source)).flatMap((each) => each.targets);
    return { ...input, model, source, target: targets.includes(input.target) ? input.target : (targets[0] ?? "") };
  }
}

const isSame = (left: Input, right: Input): boolean => toFragment(left, Infinity) === toFragment(right, Infinity);

export function parseFragment(fragment: string): Partial<Input> {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  return Object.fromEntries(["model", "source", "target", "text"].flatMap((name) => (fields.has(name) ? [[name, fields.get(name)!]] : [])));
}

/** Return the fragment of the URL for an input. It contains no long text. */
export function toFragment({ model, source, target, text }: Input, limit = MAX_URL_TEXT): string {
  const fields = { ...(model ? { model } : { source, target }), ...(text && text.length <= limit && { text }) };
  return `#${new URLSearchParams(fields)}`;
}
