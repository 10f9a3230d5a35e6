/** The tab Corpus: the predictions of a test set (or a dev set) as a table. A click opens the sentence. */
import { css, html, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import type { CorpusRow } from "../client.js";
import type { Figure } from "../figures.js";
import { TableFigure } from "../report.js";
import { shared } from "../styles.js";
import { formatNumber } from "../trace.js";
import { View } from "./base.js";
import { renderProgress } from "./controls.js";

type Column = "score" | "length" | "entropy" | "coverage";
const COLUMNS: readonly (readonly [Column, string])[] = [
  ["score", "Score"],
  ["length", "Length"],
  ["entropy", "Entropy"],
  ["coverage", "Coverage"],
];
const MOST_ROWS = 200;
/** The rows of an exported figure: more do not fit on a page. */
const MOST_DRAWN = 40;

@customElement("corpus-view")
export class CorpusView extends View {
  static override styles = [
    shared,
    css`
      .scroll { max-height: calc(100vh - 330px); min-height: 200px; }
      thead th { position: sticky; top: 0; background: var(--panel); z-index: 1; }
      th button { border: 0; background: none; padding: 2px 4px; min-height: 0; font-weight: 600; color: var(--muted); }
      td.number, th.number { text-align: end; }
      td button { text-align: start; min-height: 0; padding: 3px 6px; }
      .wrong { color: var(--bad); }
    `,
  ];

  @state() private rows: CorpusRow[] = [];
  @state() private status = "";
  @state() private progress = 0;
  private controller: AbortController | null = null;
  private read = "";

  override get data(): unknown {
    return this.sorted;
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    // The page moves on: the server stops.
    this.controller?.abort();
    this.controller = null;
    this.read = "";
  }

  private get column(): Column {
    return (this.store.state.sort.replace("-", "") || "score") as Column;
  }

  private get isDescending(): boolean {
    return this.store.state.sort.startsWith("-");
  }

  override createPaperFigure(fontSize: number): Figure | null {
    if (!this.rows.length) return null;
    const head = ["Source", "Prediction", "Reference", ...COLUMNS.map(([, name]) => name)];
    return new TableFigure(head, this.sorted.slice(0, MOST_DRAWN).map(listCells), fontSize);
  }

  /** A link to a sorted corpus predicts it again. */
  protected override willUpdate(): void {
    const { state: { sort, model }, client } = this.store;
    if (sort && (client.isLive ? this.hasExamples : client.corpora.has(model)) && this.read !== model) void this.start();
  }

  private async start(): Promise<void> {
    this.controller?.abort();
    this.controller = new AbortController();
    const { signal } = this.controller;
    this.read = this.store.state.model;
    this.rows = [];
    this.status = "Reading…";
    this.progress = 0;
    if (!this.store.state.sort) this.store.show({ sort: "score" });
    try {
      const batch: CorpusRow[] = [];
      let shown = performance.now();
      for await (const part of this.store.client.streamCorpus({ model: this.read }, signal)) {
        if (!("rows" in part)) continue;
        batch.push(...part.rows);
        this.progress = part.progress;
        if (performance.now() - shown < 200) continue;
        shown = performance.now();
        this.rows = [...batch];
        this.status = `${batch.length} rows so far`;
      }
      this.rows = batch;
      this.status = `${batch.length} rows`;
    } catch (reason) {
      if (!signal.aborted) this.status = (reason as Error).message;
    }
  }

  private get sorted(): CorpusRow[] {
    const sign = this.isDescending ? -1 : 1;
    const value = (row: CorpusRow): number => row[this.column] ?? -Infinity;
    return [...this.rows].sort((left, right) => sign * (value(left) - value(right)));
  }

  protected override render(): TemplateResult {
    const { splitName } = this.store;
    const isRunning = this.status === "Reading…" || this.status.endsWith("so far");
    return html`
      <section class="panel stack" aria-label="Corpus">
        <div class="row">
          <h2>${splitName.charAt(0).toUpperCase()}${splitName.slice(1)}</h2>
          <button type="button" id="read" class="primary" ?disabled=${!this.store.client.isLive || !this.hasExamples || isRunning} @click=${() => void this.start()}>Predict the ${splitName}</button>
          ${isRunning ? html`<button type="button" @click=${() => this.stop()}>Stop</button>` : ""}
          ${isRunning ? renderProgress("Predicting", this.progress) : ""}
          <span class="muted small" role="status">${this.status}</span>
        </div>
        ${this.rows.length ? this.renderTable() : html`<p class="muted">${this.hasExamples ? this.describeTable() : this.describeMissing()}</p>`}
      </section>
    `;
  }

  private get hasExamples(): boolean {
    return this.store.model?.split !== null;
  }

  private describeTable(): string {
    return `The model predicts every source of its ${this.store.splitName}, and this table sorts them: the worst scores first, or the longest, the least certain, the least covered.`;
  }

  private describeMissing(): string {
    return `The test set and the dev set of this model cannot be read: the files may have been moved. Restore them and start regard explore again, or ${this.store.readsImages ? "open an image" : "type a text"} above.`;
  }

  private stop(): void {
    this.controller?.abort();
    this.status = `Stopped after ${this.rows.length} rows`;
  }

  private renderTable(): TemplateResult {
    const rows = this.sorted;
    return html`<div class="scroll" tabindex="0" role="group" aria-label="Predictions">
      <table>
        <thead><tr><th>Source</th><th>Prediction</th><th>Reference</th>${COLUMNS.map(([column, name]) => this.renderHead(column, name))}</tr></thead>
        <tbody>${rows.slice(0, MOST_ROWS).map((row) => this.renderRow(row))}</tbody>
      </table>
      ${rows.length > MOST_ROWS ? html`<p class="muted small">The first ${MOST_ROWS} of ${rows.length} rows. Export JSON for all.</p>` : ""}
    </div>`;
  }

  private renderHead(column: Column, name: string): TemplateResult {
    const isSorted = this.column === column;
    const order = isSorted ? (this.isDescending ? "descending" : "ascending") : "none";
    const sort = (): void => {
      this.store.show({ sort: isSorted && !this.isDescending ? `-${column}` : column });
    };
    return html`<th class="number" aria-sort=${order}><button type="button" @click=${sort}>${name} ${isSorted ? (this.isDescending ? "↓" : "↑") : ""}</button></th>`;
  }

  private canOpen(row: CorpusRow): boolean {
    return this.store.canTrace({ source: this.store.readsImages ? { example: row.index } : { text: row.source }, edits: [] });
  }

  private open(row: CorpusRow): void {
    const source = this.store.readsImages ? { text: "", example: row.index } : { text: row.source, example: null };
    this.store.compute({ ...source, edits: [], row: 0, column: 0, tab: this.store.readsImages ? "image" : "translate" });
  }

  private renderRow(row: CorpusRow): TemplateResult {
    return html`<tr>
      <td><button type="button" class="quiet" ?disabled=${!this.canOpen(row)} @click=${() => this.open(row)}><bdi>${row.source}</bdi></button></td>
      <td class=${row.prediction === row.reference ? "" : "wrong"}><bdi>${row.prediction}</bdi></td>
      <td><bdi>${row.reference}</bdi></td>
      ${listCells(row).slice(3).map((text) => html`<td class="number">${text}</td>`)}
    </tr>`;
  }
}

/** The texts of a row: source, prediction, reference and the numbers. */
function listCells(row: CorpusRow): string[] {
  const format = (value: number | null): string => (value === null ? "–" : formatNumber(value, 2));
  return [row.source, row.prediction, row.reference, format(row.score), String(row.length), format(row.entropy), format(row.coverage)];
}
