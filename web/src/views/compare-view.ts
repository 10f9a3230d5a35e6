/** The tab Compare: two models, or the output with and without the edits, and the difference of their weights. */
import { css, html, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import { Matrix } from "../arrays.js";
import type { Colors } from "../color-scale.js";
import { FigureRow, framePaper, MatrixFigure, type Cell, type Figure } from "../figures.js";
import type { TraceRequest } from "../requests.js";
import { labelCell, selectMap, type SelectedMap } from "../selection.js";
import { shared } from "../styles.js";
import { findLayers, formatChange, formatNumber, formatPercent, type TraceDocument } from "../trace.js";
import { View } from "./base.js";
import "./canvas-figure.js";
import type { CellEvent } from "./canvas-figure.js";
import { renderMapControls } from "./controls.js";

const ORIGINAL = "original";

@customElement("compare-view")
export class CompareView extends View {
  static override styles = [
    shared,
    css`
      .panes { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: var(--space-3); align-items: start; }
      .output { font-size: var(--size-4); line-height: 1.3; }
      .output mark { background: var(--tint); color: inherit; box-shadow: inset 0 -3px var(--accent); border-radius: 2px; }
      .change { font-size: var(--size-3); font-weight: 600; }
    `,
  ];

  /** The traces that are compared. Both are shown when both are computed. */
  @state() private pair: { trace: TraceDocument; other: TraceDocument } | null = null;

  private get other(): TraceDocument | null {
    return this.pair?.other ?? null;
  }

  private get trace(): TraceDocument | null {
    return this.pair?.trace ?? this.store.trace;
  }

  private get choices(): [string, string][] {
    const { models, state: { model, edits } } = this.store;
    const others = models.filter((each) => each.id !== model && each.source_kind === this.store.model?.source_kind).map((each): [string, string] => [each.id, each.name]);
    const choices: [string, string][] = edits.length ? [[ORIGINAL, "the same model without edits"], ...others] : others;
    return choices.filter(([id]) => this.store.canTrace(this.describeOther(id)));
  }

  private describeOther(choice: string): Pick<TraceRequest, "model" | "edits"> {
    return { model: choice === ORIGINAL ? this.store.state.model : choice, edits: [] };
  }

  private get choice(): string {
    const { other } = this.store.state;
    return this.choices.some(([id]) => id === other) ? other : (this.choices[0]?.[0] ?? "");
  }

  protected override willUpdate(): void {
    const { trace } = this.store;
    if (!this.choice || !trace || !this.store.isCurrent) return;
    const changes = this.describeOther(this.choice);
    const key = JSON.stringify([this.store.describeRequest(), changes]);
    this.load(key, () => this.store.fetchTrace(changes), (other) => (this.pair = { trace, other }));
  }

  private select(trace: TraceDocument): SelectedMap | null {
    const { role, head } = this.store.state;
    const layers = findLayers(trace, role, 0).length;
    const { layer } = this.store;
    const own = typeof layer === "number" ? Math.min(layer, layers - 1) : layer;
    return selectMap(trace, this.store.choose({ role, head, hypothesis: 0, layer: own }));
  }

  /** The difference of the weights, where both have the same rows and columns: up to the first different token. */
  private get difference(): SelectedMap | null {
    const { trace } = this;
    if (!trace || !this.other) return null;
    const [left, right] = [this.select(this.other), this.select(trace)];
    if (!left || !right || left.weights.columns !== right.weights.columns) return null;
    const rows = Math.min(left.weights.rows, right.weights.rows);
    const weights = new Matrix(rows, right.weights.columns).map((_, row, column) => right.weights.at(row, column) - left.weights.at(row, column));
    const names = right.axes.rows.slice(0, rows).map((token, row) => (token === left.axes.rows[row] ? token : `${left.axes.rows[row]} → ${token}`));
    return { ...right, weights, axes: { ...right.axes, rows: names }, title: "Difference" };
  }

  override createPaperFigure(fontSize: number): Figure | null {
    const { panes } = this;
    const frame = framePaper(fontSize, panes.length);
    const parts = panes.map(([name, { weights, axes, marks }, colors]) => [name, new MatrixFigure({ ...frame, weights, axes, marks, colors })] as const);
    return parts.length ? new FigureRow(parts, fontSize) : null;
  }

  override get data(): unknown {
    return { traces: [this.other, this.trace] };
  }

  /** The matrices: before, after, and their difference. */
  private get panes(): [name: string, map: SelectedMap, colors: Colors][] {
    const { trace, store: { model, state: { colors, edits } } } = this;
    if (!trace || !this.choices.length) return [];
    const name = this.choices.find(([id]) => id === this.choice)![1];
    const panes: [string, SelectedMap | null, Colors][] = [
      [this.choice === ORIGINAL ? "Without edits" : name, this.other && this.select(this.other), colors],
      [edits.length ? "With edits" : (model?.name ?? ""), this.select(trace), colors],
      ["Difference", this.difference, "signed"],
    ];
    return panes.filter((pane): pane is [string, SelectedMap, Colors] => Boolean(pane[1]?.weights.rows));
  }

  private createFigure(map: SelectedMap, colors: Colors): MatrixFigure {
    const width = Math.max(240, this.measureWidth(".pane", 400) - 42);
    return new MatrixFigure({ weights: map.weights, axes: map.axes, marks: map.marks, colors, width, height: 420, fontSize: null, focus: this.focusIn(map), selected: [] });
  }

  private focusIn(map: SelectedMap): Cell {
    const { row, state: { column } } = this.store;
    return { row: Math.min(row, map.weights.rows - 1), column: Math.min(column, map.weights.columns - 1) };
  }

  protected override render(): TemplateResult {
    const { trace } = this;
    if (!trace) return html``;
    if (!this.choices.length) {
      return this.store.client.isLive
        ? html`<section class="panel stack"><h2>Nothing to compare with</h2>
            <p>Start the explorer with two models, <code>regard explore runs/a runs/b</code>, or edit this prediction: choose another token in the tab Translate.</p></section>`
        : html`<section class="panel stack"><h2>No comparison in this file</h2><p>The tab Compare was not open for this prediction when the file was saved.</p></section>`;
    }
    const { difference } = this;
    return html`
      <div class="stack">
        <div class="row">
          <label class="field">Compare with
            <select id="other" @change=${(event: Event) => this.store.show({ other: (event.target as HTMLSelectElement).value })}>
              ${this.choices.map(([id, text]) => html`<option value=${id} ?selected=${id === this.choice}>${text}</option>`)}
            </select></label>
          ${renderMapControls(this.store)}
        </div>
        ${this.renderFailure()}
        ${this.other ? this.renderChange(trace, this.other) : html`<p class="panel muted">Computing…</p>`}
        <div class="panes">
          ${this.panes.map(([title, map, colors]) => this.renderPane(title, map, colors))}
        </div>
        ${this.other && !difference ? html`<p class="muted">The models split the source into different tokens, so their weights have no common columns. Choose words.</p>` : ""}
      </div>
    `;
  }

  private renderChange(trace: TraceDocument, other: TraceDocument): TemplateResult {
    const [before, after] = [other.hypotheses[0], trace.hypotheses[0]];
    const isSame = before?.text === after?.text;
    return html`<section class="panel stack" aria-label="What changed" id="change">
      <p class="change">${isSame ? "The output is the same." : "The output is different."} <span class="number">${formatChange(before?.score ?? null, after?.score ?? null)}</span></p>
      <p class="output"><bdi>${before?.text}</bdi> <span class="muted">→</span> ${renderChanged(before?.tokens ?? [], after?.tokens ?? [])}</p>
      ${this.difference ? html`<p class="muted number">Average change of a row: ${formatPercent(averageChange(this.difference.weights))} of its weight.</p>` : ""}
    </section>`;
  }

  private renderPane(name: string, map: SelectedMap, colors: Colors): TemplateResult {
    const focus = this.focusIn(map);
    const value = map.weights.rows ? map.weights.at(focus.row, focus.column) : 0;
    const [rowLabel, columnLabel] = labelCell(map, focus.row, focus.column);
    return html`<section class="panel stack pane" aria-label=${name}>
      <div><h2>${name}</h2><p class="muted small number"><bdi>${rowLabel}</bdi>, <bdi>${columnLabel}</bdi>: ${colors === "signed" ? html`${formatNumber(value)}. Blue is more, orange is less.` : formatPercent(value)}</p></div>
      <canvas-figure .figure=${this.createFigure(map, colors)} .focused=${focus} .size=${{ rows: map.weights.rows, columns: map.weights.columns }}
        label=${name} description="Arrow keys move in all matrices"
        @cell-focus=${(event: CellEvent) => this.focusCell(map, event)} @cell-select=${(event: CellEvent) => this.focusCell(map, event)}></canvas-figure>
    </section>`;
  }

  private focusCell(map: SelectedMap, event: CellEvent): void {
    const { row, column } = event.detail;
    this.store.show({ row, column });
    this.store.announce(`${labelCell(map, row, column).join(", ")}: ${formatNumber(map.weights.at(row, column))}`);
  }
}

function renderChanged(before: readonly string[], after: readonly string[]): TemplateResult {
  return html`<span>${after.map((token, index) => {
    const text = token.replaceAll("▁", " ");
    return token === before[index] ? html`<bdi>${text}</bdi>` : html`<mark><bdi>${text}</bdi></mark>`;
  })}</span>`;
}

/** The average total variation between two rows. */
function averageChange(difference: Matrix): number {
  return difference.data.reduce((sum, value) => sum + Math.abs(value), 0) / 2 / Math.max(difference.rows, 1);
}
