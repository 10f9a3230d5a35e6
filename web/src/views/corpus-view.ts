/** The tab Corpus: the predictions of all models for a test set (or a dev set) as a table. A click opens the pair. */
import { css, html, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import { nameCorpus, type Corpus, type CorpusRow, type ModelSummary } from "../client.js";
import { COLUMNS, hasTrait, listCases, markDifferences, selects, selectsSource, sortCases, TRAITS, type Case, type Column, type Filter, type Trait } from "../corpus.js";
import type { Figure } from "../figures.js";
import { TableFigure } from "../report.js";
import type { CorpusRequest, MetricsRequest } from "../requests.js";
import type { State } from "../state.js";
import { START, type Place } from "../store.js";
import { shared } from "../styles.js";
import { formatNumber, formatPercent } from "../trace.js";
import { View } from "./base.js";
import { renderProgress } from "./controls.js";
import "./corpus-metrics.js";

const TRAIT_NAMES: Record<Trait, string> = { error: "Errors", disagreement: "Models disagree", unknown: "Unknown text" };
const COLUMN_NAMES: Record<Column, readonly [name: string, meaning: string]> = {
  confidence: ["Confidence", "The geometric mean of the probabilities of the output tokens"],
  length: ["Length", "The number of source tokens"],
  entropy: ["Entropy", "The entropy of the attention weights, from 0 to 1, averaged over steps"],
  coverage: ["Coverage", "The share of the source that has been attended to"],
};
/** The rows of an exported figure: more do not fit on a page. */
const ROWS_EXPORTED = 40;

@customElement("corpus-view")
export class CorpusView extends View {
  static override styles = [
    shared,
    css`
      .head h2::first-letter { text-transform: uppercase; }
      .controls { margin-inline-start: auto; }
      .filters { row-gap: var(--space-2); }
      .filters button[aria-pressed="true"] { background: var(--tint); border-color: var(--accent); font-weight: 600; }
      .filters input { width: 4.6em; min-height: 34px; padding: 4px 8px; background: var(--control); border: 1px solid var(--line-strong); border-radius: 8px; }
      .filters .shown { margin-inline-start: auto; }
      .scroll { max-height: max(320px, calc(100vh - 200px)); }
      thead th { position: sticky; top: 0; background: var(--panel); z-index: 1; white-space: nowrap; }
      th button { border: 0; background: none; padding: 2px 4px; min-height: 0; font-weight: 600; color: inherit; }
      th[aria-sort$="ending"] { color: var(--ink); }
      td.number, th.number { text-align: end; }
      td { vertical-align: top; }
      td bdi { overflow-wrap: anywhere; }
      td button { text-align: start; min-height: 0; border: 0; padding: 0 6px; margin-inline-start: -6px; }
      tbody tr:hover { background: color-mix(in srgb, var(--hover) 55%, transparent); }
      tr[aria-current="true"] { background: var(--tint); }
      .wrong { background: none; color: var(--bad); text-decoration: underline; text-decoration-thickness: 2px; text-underline-offset: 3px; }
      .wrong:empty { text-decoration: none; }
      .wrong:empty::after { content: "‸"; }
      @media (max-width: 700px) {
        .scroll { max-height: none; overflow: visible; }
        table, tbody, tr, td { display: block; }
        thead tr { display: flex; flex-wrap: wrap; }
        thead th { position: static; padding: 2px 4px 2px 0; border: 0; }
        thead th:not([aria-sort]) { display: none; }
        tbody tr { padding-block: var(--space-2); border-bottom: 1px solid var(--line); }
        td, td.number { border: 0; padding: 1px 6px; text-align: start; display: grid; grid-template-columns: 6.5em 1fr; align-items: baseline; }
        td::before { content: attr(data-name); color: var(--muted); font-size: var(--size-1); overflow-wrap: anywhere; }
        td.number { display: inline-flex; gap: 6px; padding-inline-end: var(--space-3); font-size: var(--size-1); }
      }
    `,
  ];

  /** Whether the reader has stopped the predictions. */
  @state() private isStopped = false;
  /** The models that are compared, with their predictions; those of the present model; all pairs, and those that are listed. */
  private compared: { model: ModelSummary; corpus: Corpus }[] = [];
  private present: Corpus | undefined;
  private cases: Case[] = [];
  private listed: Case[] = [];

  private get columns(): Column[] {
    return COLUMNS.filter((column) => column !== "length" || !this.store.readsImages);
  }

  private get hasCorpus(): boolean {
    return this.store.model?.split !== null;
  }

  /** The corpora that are to be predicted: that of the present model first, and those of models that may have the same pairs. */
  private get missing(): CorpusRequest[] {
    const { client, models, model: present, state: { pairs } } = this.store;
    if (!client.isLive || !present || !this.hasCorpus) return [];
    const alike = models.filter((model) => model !== present && model.source_kind === present.source_kind && model.split === present.split);
    const requests = [present, ...alike].map(({ id }) => this.store.describeCorpus(id));
    return requests.filter((request) => {
      const corpus = client.corpora.get(nameCorpus(request));
      return !corpus || (corpus.rows.length < Math.min(pairs, corpus.most) && corpus.pairs === (this.findPairs() ?? corpus.pairs));
    });
  }

  /** What identifies the pairs of the present model, if they are known. */
  private findPairs(): string | undefined {
    const { client, state: { model } } = this.store;
    return client.corpora.get(nameCorpus(this.store.describeCorpus(model)))?.pairs;
  }

  override get data(): unknown {
    const { compared } = this;
    return this.listed.map(({ predictions }) => predictions.map((row, index) => ({ model: compared[index]?.model.name, ...row })));
  }

  override createPaperFigure(fontSize: number): Figure | null {
    const cases = this.listed.slice(0, ROWS_EXPORTED);
    if (!cases.length) return null;
    const head = ["Source", "Reference", ...this.compared.map(({ model }) => model.name), ...this.columns.map((column) => COLUMN_NAMES[column][0])];
    const rows = cases.map(({ row, predictions }) => [row.source, row.reference, ...predictions.map((each) => each?.prediction ?? "–"), ...this.columns.map((column) => formatValue(row, column))]);
    return new TableFigure(head, rows, fontSize);
  }

  protected override willUpdate(): void {
    const { state } = this.store;
    const { model, beam, pairs } = state;
    this.compared = this.store.listCorpora();
    this.present = this.compared.find((each) => each.model.id === model)?.corpus;
    this.cases = this.present ? listCases(this.present, this.compared.map(({ corpus }) => corpus), pairs) : [];
    this.listed = sortCases(this.cases.filter((each) => selects(state, each)), state.sort);
    const { missing } = this;
    if (this.isStopped || !missing.length) return;
    this.stream(JSON.stringify([model, beam, pairs]), (signal) => this.predict(missing, signal), () => this.requestUpdate());
  }

  private async *predict(requests: readonly CorpusRequest[], signal: AbortSignal): AsyncIterable<Corpus> {
    for (const request of requests)
      for await (const corpus of this.store.client.streamCorpus(request, signal)) {
        yield corpus;
        if (corpus.pairs !== this.findPairs()) break;
      }
    await this.updateComplete;
    this.store.announce(`${this.describeShare()} predicted`);
  }

  protected override firstUpdated(): void {
    const { place: { top } } = this.store;
    const table = this.shadowRoot!.querySelector(".scroll");
    if (table) table.scrollTop = top;
  }

  private move(changes: Partial<Place>): void {
    this.store.place = { ...this.store.place, ...changes };
    this.requestUpdate();
  }

  /** Change which pairs are listed, or their order. */
  private list(changes: Partial<Pick<State, "sort" | keyof Filter>>): void {
    this.store.place = START;
    this.store.show(changes);
  }

  private get isRunning(): boolean {
    return !this.isStopped && !this.failure && this.missing.length > 0;
  }

  private stopPredicting(): void {
    this.stop();
    this.isStopped = true;
  }

  private resume(pairs: number): void {
    this.isStopped = false;
    this.store.show({ pairs });
  }

  protected override render(): TemplateResult {
    if (!this.present && !this.missing.length) return html`<p class="panel muted">${this.describeMissing()}</p>`;
    return html`<div class="stack">
      <section class="panel stack" aria-label="Corpus">
        <div class="row head">
          <h2>${this.store.splitName}</h2>
          <span class="muted" id="share">${this.describeShare()}</span>
          <span class="row controls">${this.renderControls()}</span>
        </div>
        ${this.renderFailure()}
        <corpus-metrics .store=${this.store} .request=${this.describeMetrics()}></corpus-metrics>
        ${this.renderOthers()}
      </section>
      ${this.cases.length ? this.renderCases() : ""}
    </div>`;
  }

  private describeMissing(): string {
    const { client, splitName, readsImages } = this.store;
    if (!client.isLive) return `This file does not contain the ${splitName}.`;
    return `The test set and the dev set of this model cannot be read: the files may have been moved. Restore them and start regard explore again, or ${readsImages ? "open an image" : "type a text"} above.`;
  }

  private get isComplete(): boolean {
    return this.cases.length === this.present?.size;
  }

  private describeShare(): string {
    return this.present ? `${format(this.cases.length)} of ${format(this.present.size)} ${this.present.size === 1 ? "pair" : "pairs"}` : "";
  }

  private renderControls(): TemplateResult | string {
    const { present, compared, missing, store: { state: { pairs }, client } } = this;
    if (this.isRunning) {
      const count = Math.max(compared.length, 1) + missing.filter((request) => present && !client.corpora.has(nameCorpus(request))).length;
      const known = compared.reduce((sum, { corpus }) => sum + Math.min(corpus.rows.length, pairs), 0);
      return html`${renderProgress("Predicting", known / (count * Math.min(pairs, present?.most ?? pairs)))}<button type="button" id="stop" @click=${() => this.stopPredicting()}>Stop</button>`;
    }
    if (this.isStopped) return html`<button type="button" id="resume" @click=${() => this.resume(pairs)}>Continue</button>`;
    if (!client.isLive || !present) return "";
    const rest = format(present.most - this.cases.length);
    const isLimited = present.most < present.size;
    if (present.most > this.cases.length) return html`<button type="button" id="rest" @click=${() => this.resume(present.most)}>Predict ${isLimited ? `${rest} more` : `the other ${rest}`}</button>`;
    return isLimited ? html`<span class="muted small">The page predicts up to ${format(present.most)}.</span>` : "";
  }

  private describeMetrics(): MetricsRequest | null {
    const indices = this.cases.filter((each) => selectsSource(this.store.state, each) && each.predictions.every(Boolean)).map(({ row }) => row.index);
    if (!indices.length || this.isRunning) return null;
    return { models: this.compared.map(({ model }) => model.id), search: this.store.describeCorpus("").search!, indices };
  }

  /** Why other models are not compared. */
  private renderOthers(): TemplateResult | string {
    const { models, client } = this.store;
    const compared = new Set(this.compared.map(({ model }) => model));
    const others = models.filter((model) => !compared.has(model));
    if (!client.isLive || this.isRunning || this.isStopped || this.failure || !others.length) return "";
    return html`<p class="muted small">Not compared, because their pairs are different or cannot be read: ${others.map(({ name }) => name).join(", ")}.</p>`;
  }

  private renderCases(): TemplateResult {
    return html`<section class="panel stack" aria-label="Pairs">
      ${this.renderFilters()}
      ${this.listed.length ? this.renderTable() : html`<p class="muted">No pair matches. <button type="button" id="all" @click=${() => this.list({ only: [], shortest: null, longest: null })}>Show all</button></p>`}
    </section>`;
  }

  private renderFilters(): TemplateResult {
    const { cases, listed } = this;
    const { only } = this.store.state;
    const lengths = cases.map(({ row }) => row.length);
    const toggle = (trait: Trait): void => this.list({ only: only.includes(trait) ? only.filter((each) => each !== trait) : [...only, trait] });
    return html`<div class="row filters" role="group" aria-label="Filters">
      ${TRAITS.filter((trait) => trait !== "disagreement" || this.compared.length > 1).map((trait) => {
        const count = cases.filter((each) => hasTrait(each, trait)).length;
        const isPressed = only.includes(trait);
        return html`<button type="button" data-trait=${trait} aria-pressed=${isPressed} ?disabled=${!count && !isPressed} @click=${() => toggle(trait)}>${TRAIT_NAMES[trait]}${trait === "error" && this.compared.length > 1 ? ` of ${this.store.model!.name}` : ""} <span class="muted number">${trait === "disagreement" && this.isRunning ? "–" : count || this.isComplete ? format(count) : `0 in the first ${format(cases.length)}`}</span></button>`;
      })}
      ${this.store.readsImages ? "" : html`<span class="row"><span class="muted small">Length</span>${this.renderLimit("shortest", "Shortest source", Math.min(...lengths))}<span class="muted small">to</span>${this.renderLimit("longest", "Longest source", Math.max(...lengths))}</span>`}
      <span class="muted small number shown" id="shown" role="status">${listed.length === cases.length ? "" : `${format(listed.length)} of ${format(cases.length)} listed`}</span>
    </div>`;
  }

  private renderLimit(name: "shortest" | "longest", label: string, limit: number): TemplateResult {
    const change = (event: Event): void => {
      const { value } = event.target as HTMLInputElement;
      this.list({ [name]: value === "" ? null : Math.max(0, Math.round(Number(value))) });
    };
    return html`<input type="number" id=${name} min="0" aria-label=${label} placeholder=${limit} .value=${String(this.store.state[name] ?? "")} @change=${change} />`;
  }

  private renderTable(): TemplateResult {
    const { listed, store: { place: { drawn } } } = this;
    const names = this.compared.length > 1 ? this.compared.map(({ model }) => model.name) : ["Prediction"];
    const rest = listed.length - drawn;
    const scroll = (event: Event): void => void (this.store.place = { ...this.store.place, top: (event.target as HTMLElement).scrollTop });
    return html`<div class="scroll" tabindex="-1" role="group" aria-label="Predictions" @scroll=${scroll}>
      <table>
        <thead><tr><th>Source</th><th>Reference</th>${names.map((name) => html`<th>${name}</th>`)}${this.columns.map((column) => this.renderHead(column))}</tr></thead>
        <tbody @keydown=${this.press}>${listed.slice(0, drawn).map((each, index) => this.renderCase(each, index, names))}</tbody>
      </table>
      ${rest > 0 ? html`<button type="button" id="more" @click=${() => this.move({ drawn: drawn + START.drawn })}>Show ${format(Math.min(START.drawn, rest))} more of ${format(listed.length)}</button>` : ""}
    </div>
    ${names.length > 1 ? html`<p class="muted small">Confidence, entropy and coverage are those of ${this.store.model!.name}.</p>` : ""}`;
  }

  private renderHead(column: Column): TemplateResult {
    const { sort } = this.store.state;
    const order = sort === column ? "ascending" : sort === `-${column}` ? "descending" : "none";
    const [name, meaning] = COLUMN_NAMES[column];
    const next = { none: column, ascending: `-${column}`, descending: "" } as const;
    return html`<th class="number" aria-sort=${order}><button type="button" title=${meaning} data-sort=${column} @click=${() => this.list({ sort: next[order] })}>${name} ${order === "none" ? "" : order === "ascending" ? "↑" : "↓"}</button></th>`;
  }

  private renderCase(each: Case, index: number, names: readonly string[]): TemplateResult {
    const { row, predictions } = each;
    const { state, readsImages } = this.store;
    const isShown = readsImages ? row.index === state.example : row.source === state.text;
    return html`<tr aria-current=${isShown}>
      <td data-name="Source">${this.renderButton(each, row, state.model, index, 0, html`<bdi>${row.source}</bdi>`)}${row.unknown.length ? html` <span class="muted small">unknown: <bdi>${row.unknown.join(" ")}</bdi></span>` : ""}</td>
      <td data-name="Reference"><bdi>${row.reference}</bdi></td>
      ${predictions.map((prediction, position) => html`<td data-name=${names[position]!}>${prediction ? this.renderButton(each, prediction, this.compared[position]!.model.id, index, position + 1, renderPrediction(prediction)) : "…"}</td>`)}
      ${this.columns.map((column) => html`<td class="number" data-name=${COLUMN_NAMES[column][0]}>${formatValue(row, column)}</td>`)}
    </tr>`;
  }

  /** With the filter *Models disagree*, the case opens in Compare. */
  private renderButton({ predictions }: Case, row: CorpusRow, model: string, index: number, column: number, content: TemplateResult): TemplateResult {
    const { readsImages, state: { only } } = this.store;
    const other = only.includes("disagreement") ? this.compared[predictions.findIndex((each) => each && each.prediction !== row.prediction)]?.model.id : undefined;
    const view: Partial<State> = other === undefined ? { tab: readsImages ? "image" : "translate" } : { tab: "compare", other };
    const state = { model, edits: [], ...(readsImages ? { text: "", example: row.index } : { text: row.source, example: null }) };
    const canOpen = this.store.canTrace({ model, edits: [], source: readsImages ? { example: row.index } : { text: row.source } });
    const { place } = this.store;
    const isReached = index === Math.min(place.row, this.listed.length - 1) && column === Math.min(place.column, this.compared.length);
    return html`<button type="button" class="quiet" data-cell=${`${index},${column}`} tabindex=${isReached ? 0 : -1} ?disabled=${!canOpen}
      @focus=${() => this.move({ row: index, column })} @click=${() => this.store.open({ state }, view)}>${content}</button>`;
  }

  private press(event: KeyboardEvent): void {
    const { row, column, drawn } = this.store.place;
    const last = Math.min(drawn, this.listed.length) - 1;
    const targets: Record<string, readonly [number, number]> = {
      ArrowDown: [Math.min(row + 1, last), column],
      ArrowUp: [Math.max(row - 1, 0), column],
      ArrowRight: [row, Math.min(column + 1, this.compared.length)],
      ArrowLeft: [row, Math.max(column - 1, 0)],
      Home: [0, column],
      End: [last, column],
    };
    const target = targets[event.key];
    if (!target) return;
    event.preventDefault();
    this.shadowRoot!.querySelector<HTMLElement>(`[data-cell="${target.join()}"]`)?.focus();
  }
}

/** A prediction. What differs from the reference is marked. */
function renderPrediction({ prediction, reference, correct }: CorpusRow): TemplateResult {
  if (correct) return html`<bdi>${prediction}</bdi>`;
  return html`<bdi>${markDifferences(prediction, reference).map(({ text, isDifferent }) => (isDifferent ? html`<mark class="wrong">${text}</mark>` : text))}</bdi>`;
}

const format = (count: number): string => count.toLocaleString("en");

function formatValue(row: CorpusRow, column: Column): string {
  const value = row[column];
  if (value === null) return "–";
  return column === "length" ? String(value) : column === "confidence" ? formatPercent(value) : formatNumber(value, 2);
}
