/** The tab Compare: two models, or the output with and without the edits, and the difference of their weights. */
import { css, html, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import { at, type Matrix } from "../arrays.js";
import type { Colors } from "../color-scale.js";
import { align, subtract, type Pair } from "../difference.js";
import { FigureRow, framePaper, MatrixFigure, type Cell, type Figure } from "../figures.js";
import type { TraceRequest } from "../requests.js";
import { findSpan, labelCell, selectMap, type SelectedMap } from "../selection.js";
import { shared } from "../styles.js";
import { formatChange, formatNumber, formatPercent, type TraceDocument } from "../trace.js";
import { View } from "./base.js";
import "./canvas-figure.js";
import type { CellEvent } from "./canvas-figure.js";
import { renderMapControls, renderUnits } from "./controls.js";

const ORIGINAL = "original";

/** The maps that are compared, which of their rows have the same tokens, and the difference of these rows. */
interface Maps {
  before: SelectedMap | null;
  after: SelectedMap | null;
  pairs: Pair[];
  difference: SelectedMap | null;
}

/** A matrix, and its focused row. */
interface Pane {
  name: string;
  map: SelectedMap;
  colors: Colors;
  row: number | null;
  /** Whether its rows are the tokens of the other output. */
  isOther: boolean;
}

@customElement("compare-view")
export class CompareView extends View {
  static override styles = [
    shared,
    css`
      .panes { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: var(--space-3); align-items: start; }
      /* The maps of a line start at the same height, whichever titles wrap. */
      .pane { grid-row: span 2; grid-template-rows: subgrid; }
      .output { font-size: var(--size-4); line-height: 1.3; }
      .output mark { background: var(--tint); color: inherit; box-shadow: inset 0 -3px var(--accent); border-radius: 2px; }
      .change { font-size: var(--size-3); font-weight: 600; }
    `,
  ];

  /** The traces that are compared. Both are shown when both are computed. */
  @state() private pair: { trace: TraceDocument; other: TraceDocument } | null = null;

  /** The focused row of the other output, if the output has no row of the same token. */
  @state() private lone: number | null = null;

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
    // Without a choice, the last layer of each model is compared.
    return selectMap(trace, this.store.choose({ hypothesis: 0, layer: this.store.state.layer ?? Infinity }));
  }

  private get maps(): Maps {
    const before = this.other && this.select(this.other);
    const after = this.trace && this.select(this.trace);
    const pairs = before && after ? align(before.axes.rows, after.axes.rows) : [];
    return { before, after, pairs, difference: before && after && subtract(before, after, pairs) };
  }

  override createPaperFigure(fontSize: number): Figure | null {
    const panes = this.listPanes(this.maps);
    const frame = framePaper(fontSize, panes.length);
    const parts = panes.map(({ name, map: { weights, axes, marks }, colors }) => [name, new MatrixFigure({ ...frame, weights, axes, marks, colors })] as const);
    return parts.length ? new FigureRow(parts, fontSize) : null;
  }

  override get data(): unknown {
    return { traces: [this.other, this.trace] };
  }

  private nameSides(): [before: string, after: string] {
    const { choice, choices, store: { model, state: { edits } } } = this;
    const name = choices.find(([id]) => id === choice)![1];
    return [choice === ORIGINAL ? "Without edits" : name, edits.length ? "With edits" : (model?.name ?? "")];
  }

  /** The matrices: before, after, and their difference. The focus is on the same token in each. */
  private listPanes({ before, after, pairs, difference }: Maps): Pane[] {
    const { trace, store: { row, state: { colors } } } = this;
    if (!trace || !this.choices.length) return [];
    const focused = after && this.lone === null ? findSpan(after.rowSpans, row) : null;
    const index = pairs.findIndex(([, right]) => right === focused);
    const [left, right] = this.nameSides();
    const panes = [
      { name: left, map: before, colors, row: this.lone ?? pairs[index]?.[0] ?? null, isOther: true },
      { name: right, map: after, colors, row: focused, isOther: false },
      { name: "Difference", map: difference, colors: "signed" as const, row: index < 0 ? null : index, isOther: false },
    ];
    return panes.filter((pane): pane is Pane => Boolean(pane.map?.weights.rows));
  }

  private findFocus({ map, row }: Pane): Cell | null {
    return row === null ? null : { row, column: findSpan(map.columnSpans, this.store.findColumn()) };
  }

  protected override render(): TemplateResult {
    const { trace } = this;
    if (!trace) return html``;
    if (!this.choices.length) {
      return this.store.client.isLive
        ? html`<section class="panel stack"><h2>Nothing to compare with</h2>
            <p>Start the explorer with two models, <code>regard explore runs/a runs/b</code>, or edit this prediction: choose another token in the tab Translate.</p></section>`
        : html`<section class="panel stack"><h2>No comparison in this file</h2><p>This comparison was not computed before the file was saved.</p></section>`;
    }
    const { maps } = this;
    return html`
      <div class="stack">
        <tool-bar class="row" aria-label="What is shown">
          <label class="field">Compare with
            <select id="other" @change=${(event: Event) => this.store.show({ other: (event.target as HTMLSelectElement).value })}>
              ${this.choices.map(([id, text]) => html`<option value=${id} ?selected=${id === this.choice}>${text}</option>`)}
            </select></label>
          ${renderMapControls(this.store)} ${renderUnits(this.store)}
        </tool-bar>
        ${this.renderFailure()}
        ${this.other ? this.renderChange(trace, this.other, maps.difference) : html`<p class="panel muted">Computing…</p>`}
        <div class="panes">
          ${this.listPanes(maps).map((pane) => this.renderPane(pane))}
        </div>
        ${maps.before && maps.after && !maps.difference ? html`<p class="muted">The models split the source into different tokens, so their weights have no common columns. To compare the weights, select Words.</p>` : ""}
      </div>
    `;
  }

  private renderChange(trace: TraceDocument, other: TraceDocument, difference: SelectedMap | null): TemplateResult {
    const [before, after] = [other.hypotheses[0], trace.hypotheses[0]];
    const [left, right] = [before?.tokens ?? [], after?.tokens ?? []];
    const pairs = align(left, right);
    const isSame = before?.text === after?.text;
    return html`<section class="panel stack" aria-label="What changed" id="change">
      <p class="change">${isSame ? "The output is the same." : "The output is different."} <span class="number">${formatChange(before?.score ?? null, after?.score ?? null)}</span></p>
      <p class="output">${renderTokens(left, new Set(pairs.map(([token]) => token)))} <span class="muted">→</span> ${renderTokens(right, new Set(pairs.map(([, token]) => token)))}</p>
      ${difference ? html`<p class="muted number" id="average">${describeAverage(difference.weights, this.store.words ? "word" : "token")}</p>` : ""}
    </section>`;
  }

  private renderPane(pane: Pane): TemplateResult {
    const { name, map, colors } = pane;
    const focus = this.findFocus(pane);
    const isDifference = colors === "signed";
    const [left, right] = this.nameSides();
    const width = Math.max(240, this.measureWidth(".pane", 400) - 42);
    const figure = new MatrixFigure({ weights: map.weights, axes: map.axes, marks: map.marks, colors, width, height: 420, fontSize: null, focus, selected: [] });
    return html`<section class="panel stack pane" aria-label=${name}>
      <div><h2>${name}</h2><span class="muted small">${isDifference ? "" : map.title}</span><p class="muted small number">${focus ? describeCell(map, focus, colors) : "The output has no such token."}${isDifference ? ` (${right} − ${left}). Blue is more, orange is less.` : ""}</p></div>
      <canvas-figure .figure=${figure} .focused=${focus ?? { row: 0, column: 0 }} .size=${{ rows: map.weights.rows, columns: map.weights.columns }}
        label=${name} description="Arrow keys move in all matrices" .hovers=${false}
        @cell-focus=${(event: CellEvent) => this.focusCell(pane, event)} @cell-select=${(event: CellEvent) => this.focusCell(pane, event)}></canvas-figure>
    </section>`;
  }

  private focusCell({ map, isOther }: Pane, event: CellEvent): void {
    const { row, column } = event.detail;
    const { after, pairs } = this.maps;
    const pair = pairs.find(([left]) => left === row);
    this.lone = isOther && !pair ? row : null;
    if (!isOther) this.store.focus(map, row, column);
    else if (after && pair) this.store.focus(after, pair[1], column);
    else this.store.show({ column: at(map.columnSpans, column)[0] });
    this.store.announce(`${labelCell(map, row, column).join(", ")}: ${formatNumber(map.weights.at(row, column))}`);
  }
}

function describeCell(map: SelectedMap, { row, column }: Cell, colors: Colors): TemplateResult {
  const [rowLabel, columnLabel] = labelCell(map, row, column);
  const value = map.weights.at(row, column);
  return html`<bdi>${rowLabel}</bdi>, <bdi>${columnLabel}</bdi>: ${colors === "signed" ? formatNumber(value) : formatPercent(value)}`;
}

/** A text whose tokens are marked if the other text does not have them. */
function renderTokens(tokens: readonly string[], common: ReadonlySet<number>): TemplateResult {
  return html`<span>${tokens.map((token, index) => {
    const text = html`<bdi>${token.replaceAll("▁", " ")}</bdi>`;
    return common.has(index) ? text : html`<mark>${text}</mark>`;
  })}</span>`;
}

/** Describe the average total variation between two rows. */
function describeAverage({ data, rows }: Matrix, unit: string): string {
  if (!rows) return `The outputs have no ${unit} in common, so no weights are subtracted.`;
  const change = data.reduce((sum, value) => sum + Math.abs(value), 0) / 2 / rows;
  return `The weights of ${rows === 1 ? `the one ${unit}` : `the ${rows} ${unit}s`} that both outputs have change by ${formatPercent(change)} on average.`;
}
