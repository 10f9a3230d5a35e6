/** An attribution beside the attention weights, with the rank agreement of both. */
import { css, html, type TemplateResult } from "lit";
import { customElement, property } from "lit/decorators.js";
import { fadeRows, METHOD_MEANINGS, METHOD_NAMES, METHOD_UNITS, METHODS, selectScores, type Attribution, type Method, type Scores } from "../attribution.js";
import { at } from "../arrays.js";
import { changesModel } from "../edits.js";
import { MatrixFigure, type Cell, type Frame } from "../figures.js";
import { findSpan, labelCell, type SelectedMap } from "../selection.js";
import { shared } from "../styles.js";
import { formatNumber, formatPercent } from "../trace.js";
import { View } from "./base.js";
import "./canvas-figure.js";
import type { CellEvent } from "./canvas-figure.js";
import { renderProgress } from "./controls.js";

@customElement("attribution-panel")
export class AttributionPanel extends View {
  static override styles = [
    shared,
    css`
      td.number, th.number { text-align: end; }
      tr[aria-current="true"] td { font-weight: 600; }
      td button { padding: 0 6px; min-height: 28px; text-align: start; }
    `,
  ];

  @property() method: Method = METHODS[0];

  /** The requests for the trace that is shown, by their method. */
  private keys: Partial<Record<Method, string>> = {};

  /** The scores, if they are computed. */
  get attribution(): Attribution | undefined {
    return this.find(this.method);
  }

  private find(method: Method): Attribution | undefined {
    return this.store.results.get(this.keys[method] ?? "") as Attribution | undefined;
  }

  protected override willUpdate(): void {
    if (!this.store.isCurrent) return;
    this.keys = Object.fromEntries(METHODS.map((method) => [method, JSON.stringify(this.store.describeAttribution(method))]));
    this.computeResult("attribution", this.store.describeAttribution(this.method));
  }

  private get map(): Scores | null {
    const { attribution } = this;
    return attribution && this.store.trace ? selectScores(attribution, this.store.trace, this.store.words) : null;
  }

  /** Return the matrix of the scores; null before they are computed. */
  createFigure(frame: Frame): MatrixFigure | null {
    const { map } = this;
    return map && new MatrixFigure({ ...frame, weights: fadeRows(map), axes: map.axes, marks: map.marks, colors: "signed" });
  }

  private frame(map: SelectedMap): Frame {
    const width = Math.max(240, this.measureWidth(".plot", 500) - 42);
    const height = Math.max(300, innerHeight - 300);
    return { width, height, fontSize: null, focus: this.focusIn(map), selected: [] };
  }

  private focusIn(map: SelectedMap): Cell {
    return { row: findSpan(map.rowSpans, this.store.row), column: findSpan(map.columnSpans, this.store.findColumn()) };
  }

  protected override render(): TemplateResult {
    const { map, failure } = this;
    return html`<section class="panel stack plot" aria-label=${METHOD_NAMES[this.method]} id="attribution">
      <h2>${METHOD_NAMES[this.method]}</h2>
      ${this.renderFailure()}
      ${failure && !map ? "" : map ? this.renderScores(map) : renderProgress("Computing scores", this.progress)}
    </section>`;
  }

  private renderScores(map: Scores): TemplateResult {
    const focus = this.focusIn(map);
    const [rowLabel, columnLabel] = labelCell(map, focus.row, focus.column);
    const [share, total] = [map.weights.at(focus.row, focus.column), at(map.effects, focus.row)];
    const unit = METHOD_UNITS[this.method] ?? "";
    return html`
      <canvas-figure .figure=${this.createFigure(this.frame(map))} .focused=${focus} .size=${{ rows: map.weights.rows, columns: map.weights.columns }}
        label=${map.title} description="Arrow keys move in both matrices"
        @cell-focus=${(event: CellEvent) => this.focusCell(map, event)} @cell-select=${(event: CellEvent) => this.focusCell(map, event)}></canvas-figure>
      <p class="small number"><bdi>${rowLabel}</bdi>, <bdi>${columnLabel}</bdi>: <span id="score">${formatSmall(share * total)}${unit}</span>, ${formatPercent(Math.abs(share))} of the total effect of this row, <span id="effect">${formatSmall(total)}${unit}</span>.
        <span class="muted">${METHOD_MEANINGS[this.method]} Blue is positive, orange is negative. Rows with a smaller total effect are fainter.</span></p>
      ${this.renderAgreement()}
      ${this.store.state.edits.some(changesModel)
        ? html`<p class="muted small">The scores explain the model without the masks and the edits of attention.</p>`
        : ""}
    `;
  }

  private renderAgreement(): TemplateResult {
    const computed = METHODS.map((method) => this.find(method)).filter((each) => each !== undefined);
    return html`<table id="agreement">
      <caption class="muted small">Agreement with the attention weights of the last layer (averaged over its heads), averaged over steps. Rank correlations: 1 is the same order. Overlap: the share of the scores on the same tokens as the weights.</caption>
      <thead><tr><th>Method</th><th class="number">Spearman</th><th class="number">Kendall</th><th class="number">Overlap</th></tr></thead>
      <tbody>${computed.map(
        (each) => html`<tr aria-current=${each.method === this.method}>
          <td>${METHOD_NAMES[each.method]}</td><td class="number">${formatAgreement(each.spearman)}</td><td class="number">${formatAgreement(each.kendall)}</td><td class="number">${formatAgreement(each.overlap ?? null)}</td></tr>`,
      )}</tbody>
    </table>`;
  }

  private focusCell(map: SelectedMap, event: CellEvent): void {
    const { row, column } = event.detail;
    this.store.focus(map, row, column);
    this.store.announce(`${labelCell(map, row, column).join(", ")}: ${formatNumber(map.weights.at(row, column))}`);
  }
}

const formatSmall = (value: number): string => (value === 0 || Math.abs(value) >= 0.001 ? formatNumber(value) : value.toExponential(1).replaceAll("-", "−"));

/** All steps may have equal scores or equal weights: then there is no agreement. */
const formatAgreement = (value: number | null): string => (value === null ? "–" : formatNumber(value, 2));
