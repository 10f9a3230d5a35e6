/** The store: the state, the documents that belong to it, and the changes of both. Views subscribe to it. */
import { at, removeAt } from "./arrays.js";
import type { Method } from "./attribution.js";
import { nameCorpus, type Client, type Corpus, type ModelSummary, type Result } from "./client.js";
import { mergeEdit, movesSource } from "./edits.js";
import { summarizeEffects, type HeadEffects, type HeadSummary } from "./heads.js";
import { MAX_TEXT, type AttributionRequest, type CorpusRequest, type HeadsRequest, type NeighborsRequest, type TraceRequest } from "./requests.js";
import { findInformativeStep, findSpan, selectMap, type Layer, type MapChoice, type SelectedMap } from "./selection.js";
import { INITIAL, pickComputed, readFragment, writeFragment, type Computed, type Example, type State } from "./state.js";
import { findLayers, findRoles, type Edit, type TraceDocument } from "./trace.js";

/** Past this number of source tokens, words are shown instead of tokens. */
const MANY_TOKENS = 200;

/** The server keeps more documents, but those in the memory of the page are shown at once. */
const MOST_DOCUMENTS = 32;

/** The URL is written when nothing was shown anew for this time, in milliseconds. Browsers limit how often a page writes it. */
const SETTLED = 300;
/** The sources that the page remembers, so that they can be exported together. */
const MOST_VISITS = 8;

export interface Place {
  readonly drawn: number;
  readonly top: number;
  readonly row: number;
  readonly column: number;
}

/** The start of the table. */
export const START: Place = { drawn: 100, top: 0, row: 0, column: 0 };

/** What was shown for a source last. */
export interface Visit {
  state: Computed;
  request: TraceRequest;
}

export class Store extends EventTarget {
  state: State = INITIAL;
  models: ModelSummary[] = [];
  trace: TraceDocument | null = null;
  /** The picture of a captioner, as base64. It is too large for the URL, so the tab of the browser keeps it. */
  image = sessionStorage.getItem("regard.image") ?? "";
  /** Why the present state could not be computed. `trace` is then the last result; empty without a failure. */
  error = "";
  /** The edit that failed last: which control made it, and why it failed. */
  refusal: { control: string; message: string } | null = null;
  /** Also before the models are known. */
  loading = true;
  /** What assistive technology reads aloud. */
  announcement = "";
  /** What was computed besides traces and corpora, by its request. */
  readonly results = new Map<string, Result>();
  /** Where the reader is in the table of the corpus: its rows that are drawn, how far it is scrolled, and its focused cell. */
  place: Place = START;
  /** What was shown of each source, the present one last. */
  readonly visits = new Map<string, Visit>();
  private past: Computed[] = [];
  private future: Computed[] = [];
  private readonly documents = new Documents();
  private controller = new AbortController();
  private unwritten: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly client: Client) {
    super();
    for (const { request, result } of client.saved?.results ?? []) this.results.set(JSON.stringify(request), result);
  }

  /** Read the models and the state of the URL. */
  async start(fragment: string): Promise<void> {
    try {
      this.models = await this.client.listModels();
    } catch (reason) {
      this.fail(reason);
      return;
    }
    this.restore(fragment);
    addEventListener("popstate", () => this.restore(location.hash));
  }

  private restore(fragment: string): void {
    const state = readFragment(fragment);
    const model = this.models.find((each) => each.id === state.model) ?? this.models[0];
    this.state = { ...state, model: model?.id ?? state.model };
    if (!state.text && state.example === null) this.state = { ...this.state, ...findFirstSource(model) };
    void this.load();
  }

  /** Ask again for what has failed. What has not is not computed again. */
  retry(): void {
    if (this.loading) return;
    this.dispatchEvent(new Event("retry"));
    void (this.models.length ? this.load() : this.start(location.hash));
  }

  /** Use another model. Its source stays the same, if it reads the same kind of source. */
  chooseModel(id: string): void {
    const { source_kind: before } = this.model!;
    this.state = { ...this.state, tab: this.state.tab === "image" ? "translate" : this.state.tab };
    const after = this.models.find((each) => each.id === id)!;
    const source = before === after.source_kind ? {} : findFirstSource(after);
    this.compute({ model: id, edits: [], ...OTHER_MODEL, ...source });
  }

  /** Whether `trace` belongs to the present state: it does not while a result is computed, or if that has failed. */
  get isCurrent(): boolean {
    return this.trace !== null && !this.loading && !this.error;
  }

  get model(): ModelSummary | undefined {
    return this.models.find((each) => each.id === this.state.model);
  }

  get readsImages(): boolean {
    return this.model?.source_kind === "image";
  }

  /** The predictions of an exported page, or sources that the model can be tried on. */
  get examples(): readonly Example[] {
    const texts = this.model?.examples ?? [];
    return this.client.saved?.examples ?? texts.map((text) => ({ label: text, state: { text, example: null, edits: [] } }));
  }

  /** Describe what was predicted: the source, and what distinguishes it from a prediction of the same source. */
  describeSource({ model, text, example, edits }: Computed): string {
    const used = this.models.find((each) => each.id === model);
    const source = example === null ? text : `Image ${example + 1} of the ${used?.split ?? "test"} set`;
    const notes = [this.models.length > 1 ? used?.name : "", edits.length ? `${edits.length} ${edits.length === 1 ? "edit" : "edits"}` : ""].filter(Boolean);
    return notes.length ? `${source} (${notes.join(", ")})` : source;
  }

  /** What the examples of the model are called. */
  get splitName(): string {
    return `${this.model?.split ?? "test"} set`;
  }

  /** Describe another picture. */
  openImage(image: string, name: string): void {
    this.image = image;
    try {
      sessionStorage.setItem("regard.image", image);
    } catch {
      // The storage of the browser is full: a reload will ask for the picture again.
    }
    this.compute({ text: name, example: null, edits: [], row: null });
  }

  /** Describe an image of the test set, or of the dev set. */
  openExample(example: number): void {
    this.compute({ text: "", example, edits: [], row: null });
  }

  private get hasSource(): boolean {
    // An exported page contains the document of its source.
    if (!this.client.isLive) return true;
    if (this.readsImages) return this.state.example !== null || Boolean(this.image);
    return Boolean(this.state.text.trim());
  }

  /** Change what is shown. The URL is written when the changes have settled. */
  show(changes: Partial<State>): void {
    this.state = { ...this.state, ...changes };
    clearTimeout(this.unwritten);
    this.unwritten = setTimeout(() => this.writeUrl(), SETTLED);
    this.notify();
  }

  /** Write the state to the URL now. */
  writeUrl(): void {
    clearTimeout(this.unwritten);
    this.unwritten = undefined;
    const fragment = `#${writeFragment(this.state)}`;
    if (fragment !== (location.hash || "#")) history.replaceState(null, "", fragment);
  }

  /** Focus a cell of a map: the first token of its row and of its column. */
  focus(map: SelectedMap, row: number, column: number): void {
    this.show({ row: at(map.rowSpans, row)[0], column: at(map.columnSpans, column)[0] });
  }

  /** Change what the model computes: decode again. */
  compute(changes: Partial<State>): void {
    this.past.push(pickComputed(this.state));
    this.future = [];
    this.move({ hypothesis: 0, rows: [], ...changes });
  }

  async addEdit(edit: Edit, control: string, changes?: Partial<State>): Promise<void> {
    const edits = mergeEdit(this.state.edits, edit);
    if (JSON.stringify(edits) === JSON.stringify(this.state.edits)) this.announce("This edit is already applied.");
    else await this.changeEdits(edits, control, changes);
  }

  removeEdit(index: number): void {
    void this.changeEdits(removeAt(this.state.edits, index), "edits");
  }

  /** Decode again with other edits, and change what is shown. If that fails, the page stays as it was, and the reason is shown beside the control. */
  async changeEdits(edits: Edit[], control: string, changes?: Partial<State>): Promise<void> {
    const signal = this.begin();
    this.loading = true;
    this.notify();
    try {
      await this.fetchTrace({ edits });
      if (!signal.aborted) this.compute({ edits, ...changes });
    } catch (reason) {
      if (signal.aborted) return;
      this.refusal = { control, message: readMessage(reason) };
      this.loading = false;
      this.announce(this.refusal.message);
      this.notify();
    }
  }

  /** Show an example, which may be of another model, and change what else is shown. */
  open({ state }: Pick<Example, "state">, changes: Partial<State> = {}): void {
    const isOther = state.model !== undefined && state.model !== this.state.model;
    this.compute({ ...state, row: null, column: null, ...(isOther ? OTHER_MODEL : {}), ...changes });
  }

  get canUndo(): boolean {
    return this.past.length > 0;
  }

  get canRedo(): boolean {
    return this.future.length > 0;
  }

  undo(): void {
    const previous = this.past.pop();
    if (!previous) return;
    this.future.push(pickComputed(this.state));
    this.move({ ...previous, hypothesis: 0 });
    this.announce("Undone.");
  }

  redo(): void {
    const next = this.future.pop();
    if (!next) return;
    this.past.push(pickComputed(this.state));
    this.move({ ...next, hypothesis: 0 });
    this.announce("Redone.");
  }

  announce(text: string): void {
    this.announcement = text;
    this.dispatchEvent(new Event("announce"));
  }

  private move(changes: Partial<State>): void {
    if (this.unwritten !== undefined) this.writeUrl();
    this.state = { ...this.state, ...changes };
    history.pushState(null, "", `#${writeFragment(this.state)}`);
    void this.load();
  }

  /** The request of the present state. */
  describeRequest(changes: Partial<TraceRequest> = {}): TraceRequest {
    const { model, text, example, beam, edits } = this.state;
    // An exported page does not contain the file of the image, only its name.
    const image = example === null ? { image: this.client.isLive ? this.image : text } : { example };
    const source = this.readsImages ? image : { text };
    return { model, source, search: { beam, nbest: Math.min(beam, 5) }, edits, ...changes };
  }

  /** The request of an attribution for the present hypothesis. Edits of the source and of tokens are part of it. */
  describeAttribution(method: Method): AttributionRequest {
    const { model, search } = this.describeRequest();
    const { hypothesis, edits } = this.state;
    const isPredicted = !edits.length && hypothesis === 0;
    return {
      model,
      source: this.describeEditedSource(),
      // A given target is explained without a search.
      ...(isPredicted ? { search } : { target: this.trace!.hypotheses[hypothesis]?.text ?? null }),
      methods: [method],
    };
  }

  /** The sources of the model besides the present one. */
  get otherExamples(): TraceRequest["source"][] {
    const { source } = this.describeRequest();
    const { model } = this;
    const images = model?.split ? Array.from({ length: 8 }, (_, example) => ({ example })) : [];
    const examples = this.readsImages ? images : (model?.examples ?? []).map((text) => ({ text }));
    return examples.filter((each) => JSON.stringify(each) !== JSON.stringify(source));
  }

  /** The requests of the effects of heads. Edits of this source are not those of other examples. */
  describeHeads(): HeadsRequest[] {
    const request = this.describeRequest();
    const edits = request.edits!.filter(({ kind }) => kind === "ablate_head");
    const others = this.otherExamples.map((source) => ({ ...request, source, edits }));
    return [request, ...others].slice(0, [0, 1, Infinity][this.state.ablations]);
  }

  /** The effects of all heads, as far as they are computed; null before. */
  get effects(): HeadSummary[] | null {
    const results = this.describeHeads().map((request) => this.results.get(JSON.stringify(request)) as HeadEffects | undefined);
    const computed = results.filter((each) => each !== undefined);
    return computed.length ? summarizeEffects(computed, this.state.edits) : null;
  }

  /** The request of the training pairs that are near to the source, and to the state of the decoder at the present step. */
  describeNeighbors(): NeighborsRequest {
    const { row, state: { model, hypothesis } } = this;
    const steps = this.trace!.steps[hypothesis] ?? [];
    return { model, source: this.describeEditedSource(), tokens: steps.slice(0, row).map(({ id }) => id) };
  }

  private describeEditedSource(): TraceRequest["source"] {
    const { source } = this.describeRequest();
    return "text" in source ? { text: this.trace!.source.text } : source;
  }

  /** The request of the corpus of a model, with the search of the page: a row opens the same prediction. */
  describeCorpus(model: string): CorpusRequest {
    const { beam, pairs } = this.state;
    return { model, search: { beam }, limit: pairs };
  }

  /** The models whose corpus has the pairs of the present model, as far as they were predicted, with these predictions. */
  listCorpora(): { model: ModelSummary; corpus: Corpus }[] {
    const find = ({ id }: { id: string }): Corpus | undefined => this.client.corpora.get(nameCorpus(this.describeCorpus(id)));
    const present = find({ id: this.state.model });
    return this.models.flatMap((model) => {
      const corpus = find(model);
      return corpus && corpus.pairs === present?.pairs ? [{ model, corpus }] : [];
    });
  }

  /** Return the document of the present request with some changes, computed once. */
  fetchTrace(changes: Partial<TraceRequest> = {}): Promise<TraceDocument> {
    return this.fetchDocument(this.describeRequest(changes));
  }

  /** Return the document of a request, computed once. */
  fetchDocument(request: TraceRequest): Promise<TraceDocument> {
    return this.documents.fetch(request, this.controller.signal, (signal) => this.client.trace(request, signal));
  }

  /** Whether there is a document of the present request with some changes, or a server that computes it. */
  canTrace(changes: Partial<TraceRequest>): boolean {
    return this.client.canTrace(this.describeRequest(changes));
  }

  /** The documents that were computed last, with their requests. */
  get computed(): { request: TraceRequest; document: TraceDocument }[] {
    return this.documents.listComplete();
  }

  /** The tokens of the source before the edits, as far as they are known. */
  get sourceTokens(): readonly string[] {
    const original = JSON.stringify(this.describeRequest({ edits: [] }));
    const found = this.computed.find(({ request }) => JSON.stringify(request) === original)?.document;
    return (found ?? (this.state.edits.some(movesSource) ? null : this.trace))?.source.tokens ?? [];
  }

  private remember(): void {
    const state = pickComputed(this.state);
    const key = JSON.stringify([state.model, state.text, state.example]);
    this.visits.delete(key);
    this.visits.set(key, { state, request: this.describeRequest() });
    if (this.visits.size > MOST_VISITS) this.visits.delete(this.visits.keys().next().value!);
  }

  /** Start other work. That for an earlier state is not needed any more. */
  private begin(): AbortSignal {
    if (this.loading) this.controller.abort();
    this.controller = new AbortController();
    this.refusal = null;
    return this.controller.signal;
  }

  private async load(): Promise<void> {
    const signal = this.begin();
    this.error = "";
    if (!this.hasSource) {
      this.trace = null;
      this.loading = false;
      this.notify();
      return;
    }
    this.loading = true;
    this.notify();
    try {
      checkLength(this.state.text);
      const trace = await this.fetchTrace();
      if (signal.aborted) return;
      this.trace = trace;
      this.remember();
      this.clamp();
      this.announce(`Output: ${trace.hypotheses[0]?.text ?? "empty"}`);
    } catch (reason) {
      if (signal.aborted) return;
      this.fail(reason);
    }
    this.loading = false;
    this.notify();
  }

  /** Keep the focus and the selected attention inside the new document, which may be of another model. */
  private clamp(): void {
    const trace = this.trace!;
    const roles = findRoles(trace);
    if (roles.length && !roles.includes(this.state.role)) this.state = { ...this.state, ...OTHER_MODEL, role: roles[0]! };
    const hypothesis = Math.min(this.state.hypothesis, Math.max(trace.hypotheses.length - 1, 0));
    const rows = trace.hypotheses[hypothesis]?.tokens.length ?? 0;
    const row = this.state.row && Math.min(this.state.row, Math.max(rows - 1, 0));
    this.state = { ...this.state, hypothesis, row, rows: this.state.rows.filter((each) => each < rows) };
  }

  private fail(reason: unknown): void {
    this.error = readMessage(reason);
    this.loading = false;
    this.announce(this.error);
    this.notify();
  }

  notify(): void {
    this.dispatchEvent(new Event("change"));
  }

  /** Whether words are shown: as chosen, or because the source is long. */
  get words(): boolean {
    return this.state.words ?? (this.trace !== null && this.trace.source.tokens.length > MANY_TOKENS);
  }

  /** The focused output token. */
  get row(): number {
    return this.state.row ?? findInformativeStep(this.trace!, this.state.hypothesis);
  }

  /** The focused slot of a map. */
  findColumn(map = this.map): number {
    const { column } = this.state;
    if (column !== null || !map?.weights.rows) return column ?? 0;
    const weights = map.weights.row(findSpan(map.rowSpans, this.row));
    return at(map.columnSpans, weights.indexOf(Math.max(...weights)))[0];
  }

  get layer(): Layer {
    const layers = this.trace ? findLayers(this.trace, this.state.role, this.state.hypothesis).length : 1;
    return this.state.layer ?? layers - 1;
  }

  choose(changes: Partial<MapChoice> = {}): MapChoice {
    const { role, head, hypothesis } = this.state;
    return { role, head, hypothesis, layer: this.layer, words: this.words, ...changes };
  }

  /** The selected weights. */
  get map(): SelectedMap | null {
    return this.trace ? selectMap(this.trace, this.choose()) : null;
  }
}

interface Entry {
  request: TraceRequest;
  promise: Promise<TraceDocument>;
  signal: AbortSignal;
  /** null while it is pending. */
  document: TraceDocument | null;
}

/** Documents by their request, each computed once. The least recently used are removed. */
class Documents {
  private readonly entries = new Map<string, Entry>();

  /** Return a document. A request that has failed or was aborted is sent again. */
  fetch(request: TraceRequest, signal: AbortSignal, send: (signal: AbortSignal) => Promise<TraceDocument>): Promise<TraceDocument> {
    const key = JSON.stringify(request);
    const known = this.entries.get(key);
    const entry = known && (known.document || !known.signal.aborted) ? known : this.start(key, { request, promise: send(signal), signal, document: null });
    this.entries.delete(key);
    this.entries.set(key, entry);
    for (const oldest of this.entries.keys()) {
      if (this.entries.size <= MOST_DOCUMENTS) break;
      this.entries.delete(oldest);
    }
    return entry.promise;
  }

  listComplete(): { request: TraceRequest; document: TraceDocument }[] {
    return [...this.entries.values()].flatMap(({ request, document }) => (document ? [{ request, document }] : []));
  }

  private start(key: string, entry: Entry): Entry {
    entry.promise.then(
      (document) => (entry.document = document),
      () => {
        // The same request may have been sent again.
        if (this.entries.get(key) === entry) this.entries.delete(key);
      },
    );
    return entry;
  }
}

/** Layers and heads of one model are not those of another. */
const OTHER_MODEL = { layer: null, head: "mean" } as const;

/** The message of an error. The server counts edits from 0, as Python does. */
const readMessage = (reason: unknown): string =>
  (reason as Error).message.replace(/^edits\[(\d+)\]/, (_, index: string) => `Edit ${Number(index) + 1}`);

/** The source of a first visit: an example of the test set, or of the dev set. */
function findFirstSource(model: ModelSummary | undefined): Pick<State, "text" | "example"> {
  if (model?.source_kind === "image") return { text: "", example: model.split === null ? null : 0 };
  return { text: model?.examples[0] ?? "", example: null };
}

/** Throw an error for a text that the server would not accept. The browser would cut it without saying so. */
function checkLength(text: string): void {
  const { length } = [...text];
  if (length > MAX_TEXT) throw new Error(`The source has ${length.toLocaleString("en")} characters, and the page reads up to ${MAX_TEXT.toLocaleString("en")}. Use a shorter text.`);
}
