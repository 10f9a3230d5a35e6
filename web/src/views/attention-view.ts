/** The tab Attention: four views of the selected weights. */
import { css, html, type TemplateResult } from "lit";
import { customElement } from "lit/decorators.js";
import { addScaled, at, atMost, Matrix } from "../arrays.js";
import { METHOD_NAMES, METHODS, type Method } from "../attribution.js";
import { createScale } from "../color-scale.js";
import { isAblated } from "../edits.js";
import { FigureRow, framePaper, GridFigure, LinesFigure, MatrixFigure, type Cell, type Figure, type Frame } from "../figures.js";
import type { HeadSummary } from "../heads.js";
import { colorOf, currentPalette, isDark } from "../palette.js";
import { findSpan, labelCell, type SelectedMap } from "../selection.js";
import type { ColorScale, ViewName } from "../state.js";
import { shared } from "../styles.js";
import { findLayers, formatNumber, formatPercent, labelToken, readHeads, ROLE_NAMES, type Edit } from "../trace.js";
import { listTokens } from "../words.js";
import "./attribution-panel.js";
import type { AttributionPanel } from "./attribution-panel.js";
import { View } from "./base.js";
import "./canvas-figure.js";
import type { CellEvent, CellFigure } from "./canvas-figure.js";
import { renderHypotheses, renderMapControls, renderRefusal, renderSegments, renderUnits } from "./controls.js";
import "./heads-panel.js";
import "./row-editor.js";
import "./scale-legend.js";

@customElement("attention-view")
export class AttentionView extends View {
  static override styles = [
    shared,
    css`
      .body { display: grid; grid-template-columns: minmax(0, 1fr) 320px; gap: var(--space-3); align-items: start; }
      @media (max-width: 900px) { .body { grid-template-columns: minmax(0, 1fr); } }
      .matrices { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: var(--space-3); align-items: start; min-width: 0; }
      aside { display: grid; gap: var(--space-3); }
      .shaded { font-size: var(--size-4); line-height: 2; }
      .shaded span, .shaded button { padding: 3px 4px; border-radius: 5px; font-size: inherit; line-height: 1.3; min-height: 0; }
      .shaded .masked { text-decoration: line-through 2px; }
      .shaded button { border: 1px solid transparent; background: none; margin: 0; }
      .shaded button[aria-pressed="true"] { background: var(--accent-fill); color: var(--on-accent); }
      ol { margin: 0; padding: 0; list-style: none; display: grid; gap: 4px; }
      li { display: grid; grid-template-columns: 5em 1fr 4.2em; gap: 8px; align-items: center; }
      li bdi { overflow: hidden; text-overflow: ellipsis; white-space: pre; text-align: end; }
      .bar { height: 12px; border-radius: 3px; background: var(--line); overflow: hidden; }
      .bar i { display: block; height: 100%; background: var(--accent); }
      .edits .row span { flex-basis: 100%; }
      .edits button { min-height: 30px; padding: 2px 10px; }
      .value { font-size: var(--size-5); font-weight: 650; letter-spacing: -0.02em; line-height: 1.1; }
    `,
  ];

  private get cell(): Cell {
    const map = this.store.map!;
    return { row: findSpan(map.rowSpans, this.store.row), column: findSpan(map.columnSpans, this.store.findColumn(map)) };
  }

  /** The selected rows of the map. */
  private get selected(): number[] {
    const map = this.store.map!;
    return [...new Set(this.store.state.rows.map((row) => findSpan(map.rowSpans, row)))];
  }

  override createPaperFigure(fontSize: number): Figure | null {
    const map = this.store.map;
    const frame = framePaper(fontSize, this.method ? 2 : 1);
    const scores = this.panel?.createFigure(frame);
    const parts: [string, Figure][] = [];
    if (map?.weights.rows) parts.push([this.nameMap(map), this.createFigure(map, frame)]);
    if (scores) parts.push([METHOD_NAMES[this.method as Method], scores]);
    return parts.length ? new FigureRow(parts, fontSize) : null;
  }

  /** The title of the present view. The grid shows all layers and heads. */
  private nameMap(map: SelectedMap): string {
    const { view, role } = this.store.state;
    return view === "grid" ? ROLE_NAMES[role] : map.title;
  }

  override get data(): unknown {
    const attribution = this.panel?.attribution;
    return attribution ? { ...this.store.trace, attributions: [attribution] } : this.store.trace;
  }

  private get panel(): AttributionPanel | null {
    return this.shadowRoot?.querySelector("attribution-panel") ?? null;
  }

  /** The attribution beside the weights: source tokens have scores, so it belongs to cross-attention. */
  private get method(): Method | "" {
    const { role, method } = this.store.state;
    return role === "cross" && this.methods.some((each) => each === method) ? method : "";
  }

  /** The attributions that can be shown: an exported page contains those that were computed. */
  private get methods(): readonly Method[] {
    const { store } = this;
    return store.client.isLive ? METHODS : METHODS.filter((method) => store.results.has(JSON.stringify(store.describeAttribution(method))));
  }

  private createFigure(map: SelectedMap, frame: Frame): CellFigure {
    const { weights, axes, marks } = map;
    const { view, colors } = this.store.state;
    if (view === "lines") return new LinesFigure({ ...frame, weights, axes, marks });
    const isOff = (layer: number, head: number): boolean => this.isOff(layer, head);
    return view === "grid" ? new GridFigure({ ...frame, maps: this.heads, axes, colors, isOff, effects: this.effects }) : new MatrixFigure({ ...frame, weights, axes, colors, marks });
  }

  /** The effects of the heads of this attention, as far as they are computed. */
  private get effects(): HeadSummary[] {
    return this.store.effects?.filter(({ role }) => role === this.store.state.role) ?? [];
  }

  private isOff(layer: number, head: number): boolean {
    const trace = this.store.trace!;
    const { role, hypothesis } = this.store.state;
    return isAblated(trace.edits, atMost(findLayers(trace, role, hypothesis), layer).name, head);
  }

  private get frame(): Frame {
    const width = Math.max(280, this.measureWidth(".plot", 900) - 42);
    const height = Math.max(300, innerHeight - 300);
    return { width, height, fontSize: null, focus: this.store.state.view !== "grid" ? this.cell : this.isTileChosen ? this.tile : null, selected: this.selected };
  }

  private get heads(): Matrix[][] {
    const { role, hypothesis } = this.store.state;
    return findLayers(this.store.trace!, role, hypothesis).map(readHeads);
  }

  /** In the grid, a row is a layer and a column is a head. */
  private get tile(): Cell {
    const { layer, state: { head } } = this.store;
    return { row: typeof layer === "number" ? layer : this.heads.length - 1, column: typeof head === "number" ? head : 0 };
  }

  private get isTileChosen(): boolean {
    return typeof this.store.layer === "number" && typeof this.store.state.head === "number";
  }

  protected override render(): TemplateResult {
    const map = this.store.map;
    if (!map || !map.weights.rows) return this.renderWithoutWeights();
    const { view, colors, rows } = this.store.state;
    return html`
      <div class="stack">
        <tool-bar class="row" aria-label="What is shown">
          ${renderSegments<ViewName>("View", [["matrix", "Matrix"], ["lines", "Lines"], ["grid", "Heads"], ["text", "Text"]], view, (value) => this.store.show({ view: value }))}
          ${renderMapControls(this.store)}
          ${renderUnits(this.store)}
          ${renderSegments<ColorScale>("Colors", [["fixed", "Colors fixed"], ["row", "per row"]], colors, (value) => this.store.show({ colors: value }))}
          ${this.renderMethods()} ${renderHypotheses(this.store)}
        </tool-bar>
        <div class="body">
          <div class="matrices">
            <section class="panel plot stack" aria-label=${this.nameMap(map)}>
              <div class="row"><h2>${this.nameMap(map)}</h2></div>
              ${view === "text" ? this.renderText(map) : view === "grid" ? html`<heads-panel .store=${this.store}>${this.renderFigure(map)}</heads-panel>` : this.renderFigure(map)}
            </section>
            ${this.renderAttribution()}
          </div>
          <aside>
            ${view === "grid" ? this.renderTileHelp() : this.renderDetails(map)}
            ${this.store.client.isLive ? this.renderEdits(map) : ""}
            <section class="panel stack small muted">
              <p>Attention weights are not by themselves an explanation of an output: compare them with an attribution, and with the effect of an edit.</p>
              ${rows.length ? html`<button type="button" @click=${() => this.store.show({ rows: [] })}>Clear the selection</button>` : ""}
            </section>
          </aside>
        </div>
      </div>
    `;
  }

  /** A model without attention still has attributions. */
  private renderWithoutWeights(): TemplateResult {
    return html`<div class="stack">
      <p class="panel">This prediction has no attention weights.</p>
      <div class="row">${this.renderMethods()}</div>
      ${this.renderAttribution()}
    </div>`;
  }

  private renderMethods(): TemplateResult | string {
    if (this.store.state.role !== "cross" || !this.methods.length) return "";
    const change = (event: Event): void => this.store.show({ method: (event.target as HTMLSelectElement).value as Method | "" });
    return html`<label class="field">Compare with
      <select id="method" @change=${change}>
        <option value="" ?selected=${!this.method}>no attribution</option>
        ${this.methods.map((method) => html`<option value=${method} ?selected=${method === this.method}>${METHOD_NAMES[method]}</option>`)}
      </select></label>`;
  }

  private renderAttribution(): TemplateResult | string {
    return this.method ? html`<attribution-panel .store=${this.store} method=${this.method}></attribution-panel>` : "";
  }

  private renderFigure(map: SelectedMap): TemplateResult {
    const isGrid = this.store.state.view === "grid";
    const size = isGrid
      ? { rows: this.heads.length, columns: at(this.heads, 0).length }
      : { rows: map.weights.rows, columns: map.weights.columns };
    return html`<canvas-figure
      .figure=${this.createFigure(map, this.frame)}
      .hovers=${!isGrid}
      .focused=${isGrid ? this.tile : this.cell}
      .size=${size}
      label=${map.title}
      description=${isGrid ? "Arrow keys choose a layer and a head, Enter opens it" : "Arrow keys move, the space bar selects rows"}
      @cell-focus=${(event: CellEvent) => this.focusCell(map, event, isGrid)}
      @cell-select=${(event: CellEvent) => this.selectCell(map, event, isGrid)}
    ></canvas-figure>`;
  }

  private focusCell(map: SelectedMap, event: CellEvent, isGrid: boolean): void {
    const { row, column } = event.detail;
    if (isGrid) {
      this.store.show({ layer: row, head: column });
      this.store.announce(`Layer ${row + 1}, head ${column + 1}`);
      return;
    }
    this.store.focus(map, row, column);
    const [rowLabel, columnLabel] = labelCell(map, row, column);
    this.store.announce(`${map.axes.rowName} ${rowLabel}, ${map.axes.columnName} ${columnLabel}: ${formatPercent(map.weights.at(row, column))}`);
  }

  private selectCell(map: SelectedMap, event: CellEvent, isGrid: boolean): void {
    const { row, column, extend } = event.detail;
    if (isGrid) {
      const isOpened = this.isTileChosen && row === this.tile.row && column === this.tile.column;
      this.store.show({ layer: row, head: column, view: isOpened ? "matrix" : "grid" });
      return;
    }
    this.store.focus(map, row, column);
    const isSelected = this.toggleRow(map, row, extend);
    this.store.announce(`${map.axes.rows[row]} ${isSelected ? "added to" : "removed from"} the selection`);
  }

  /** Add a row to the selection, or remove it. Return whether it is selected now. */
  private toggleRow(map: SelectedMap, row: number, extend: boolean): boolean {
    const { rows } = this.store.state;
    const span = at(map.rowSpans, row);
    const tokens = listTokens(span);
    const isSelected = rows.includes(span[0]);
    const others = extend || isSelected ? rows.filter((each) => !tokens.includes(each)) : [];
    this.store.show({ rows: isSelected ? others : [...others, ...tokens] });
    return !isSelected;
  }

  private renderTileHelp(): TemplateResult {
    const { row: layer, column: head } = this.tile;
    if (!this.isTileChosen) return html`<p class="panel muted small">Select a head to change its weights.</p>`;
    const effect = this.effects.find((each) => each.layer === layer && each.head === head);
    const weights = atMost(atMost(this.heads, layer), head);
    return html`<section class="panel stack">
      <h3>Layer ${layer + 1}, head ${head + 1}${this.isOff(layer, head) ? ", off" : ""}</h3>
      ${effect && !effect.isOff ? html`<p class="number">${effect.isIdle ? "No effect" : `Without it, the log-probability of the output changes by ${formatNumber(effect.change)}`} on ${effect.where}.</p>` : ""}
      <p class="number">Average entropy of a row: ${averageEntropy(weights).toFixed(2)} nats of at most ${Math.log(weights.columns).toFixed(2)}.</p>
      <button type="button" class="primary" @click=${() => this.store.show({ layer, head, view: "matrix" })}>Open this head</button>
    </section>`;
  }

  /** The distribution of the focused row, or of the selected rows together. */
  private renderDetails(map: SelectedMap): TemplateResult {
    const { row, column } = this.cell;
    const chosen = this.selected.length ? this.selected : [row];
    const distribution = averageRows(map.weights, chosen);
    const largest = [...distribution].map((weight, slot) => ({ weight, label: labelCell(map, row, slot)[1] })).sort((left, right) => right.weight - left.weight);
    const [rowLabel, columnLabel] = labelCell(map, row, column);
    const name = chosen.map((each) => labelCell(map, each, column)[0]).join(" ");
    return html`<section class="panel stack">
      ${this.selected.length
        ? html`<div><p class="muted small">Sum over ${chosen.length} selected ${chosen.length === 1 ? "row" : "rows"}, divided by their number</p><h3><bdi>${name}</bdi></h3></div>`
        : html`<div>
            <p class="value number">${formatPercent(map.weights.at(row, column))}</p>
            <p><bdi>${rowLabel}</bdi> <span class="muted">attends to</span> <bdi>${columnLabel}</bdi></p>
          </div>`}
      <ol aria-label="Largest weights">
        ${largest.slice(0, 8).map(({ weight, label }) => html`<li><bdi>${label}</bdi><span class="bar"><i .style=${`width:${100 * Math.min(1, weight)}%`}></i></span><span class="number small">${formatPercent(weight)}</span></li>`)}
      </ol>
    </section>`;
  }

  /** Edits of the focused row, which the model decodes again. */
  private renderEdits(map: SelectedMap): TemplateResult {
    const { role, hypothesis, head } = this.store.state;
    const { layer } = this.store;
    const layers = findLayers(this.store.trace!, role, hypothesis);
    if (typeof layer !== "number") return html`<p class="panel muted small">Choose a single layer to change its weights.</p>`;
    const entry = atMost(layers, layer);
    const heads = readHeads(entry).length;
    const target = { attention: entry.name, head: typeof head === "number" ? head : null };
    const { row, column } = this.cell;
    const [step] = at(map.rowSpans, row);
    const keys = listTokens(at(map.columnSpans, column));
    const key = html`<bdi>“${labelCell(map, row, column)[1]}”</bdi>`;
    const button = (id: string, text: unknown, edit: Edit): TemplateResult =>
      html`<button type="button" id=${id} @click=${() => this.store.addEdit(edit, "attention")}>${text}</button>`;
    return html`<section class="panel stack edits" aria-label="Decode again">
      <div><h3>Decode again</h3><p class="muted small">Change ${heads === 1 ? "the weights" : typeof head === "number" ? `head ${head + 1}` : "all heads"}${layers.length > 1 ? ` of layer ${layer + 1}` : ""}. The model continues from there.</p></div>
      <div class="row" role="group" aria-label="Mask a key"><span>Mask ${key}</span>
        ${button("mask-key", "here", { kind: "mask_keys", ...target, step, keys })}
        ${button("mask-key-everywhere", "at all steps", { kind: "mask_keys", ...target, step: null, keys })}
        <span class="muted small">Its weight is 0, and the other weights grow. The source stays the same.</span></div>
      <div class="row" role="group" aria-label="Uniform weights"><span>Uniform weights</span>
        ${button("uniform-row", "here", { kind: "uniform_row", ...target, step })}
        ${button("uniform-everywhere", "at all steps", { kind: "uniform_row", ...target, step: null })}</div>
      ${heads === 1 || typeof head === "number"
        ? html`<div class="row">${button("ablate-head", heads === 1 ? "Ablate the attention" : `Ablate head ${Number(head) + 1}`, { kind: "ablate_head", attention: entry.name, head: target.head ?? 0 })}</div>`
        : html`<p class="muted small">Choose a head to ablate it.</p>`}
      ${renderRefusal(this.store, "attention")}
      <row-editor .store=${this.store} .map=${map} .edited=${{ ...target, row, step, keys: role === "decoder-self" ? step + 1 : entry.shape[entry.shape.length - 1] }}></row-editor>
    </section>`;
  }

  private renderText(map: SelectedMap): TemplateResult {
    const chosen = this.selected.length ? this.selected : [this.cell.row];
    const distribution = averageRows(map.weights, chosen);
    const largest = this.store.state.colors === "row" ? Math.max(...distribution) || 1 : 1;
    const palette = currentPalette();
    const isSelf = map.axes.rowName === map.axes.columnName;
    return html`
      <div class="row"><p class="muted small">${isSelf ? "Keys" : map.axes.columnName}</p><scale-legend .scale=${createScale(this.store.state.colors)}></scale-legend></div>
      <div class="shaded" dir="auto">
        ${map.axes.columns.map((token, column) => {
          const weight = distribution[column] ?? 0;
          return html`<span class=${map.marks?.struck.columns.has(column) ? "masked" : ""} .style=${`background:${colorOf(palette, weight / largest)};color:${textOn(weight / largest)}`} title=${formatPercent(weight)}>${labelToken(token)}</span>`;
        })}
      </div>
      <p class="muted small">${isSelf ? "Queries" : map.axes.rowName}: select one or several</p>
      <div class="shaded" dir="auto">
        ${map.axes.rows.map(
          (token, row) => html`<button type="button" class=${map.marks?.forced.rows.has(row) ? "forced" : ""} aria-pressed=${chosen.includes(row)}
            @click=${() => this.chooseRow(map, row)}>${labelToken(token)}</button>`,
        )}
      </div>
    `;
  }

  private chooseRow(map: SelectedMap, row: number): void {
    this.store.show({ row: at(map.rowSpans, row)[0] });
    this.toggleRow(map, row, true);
  }
}

/** Text on a weight: dark on light colors. The ramps of the themes go in opposite directions. */
function textOn(weight: number): string {
  return weight > 0.5 === isDark() ? "#10131a" : "#ffffff";
}

function averageRows(weights: Matrix, rows: readonly number[]): Float64Array {
  const sum = new Float64Array(weights.columns);
  for (const row of rows) addScaled(sum, weights.row(row), 1 / rows.length);
  return sum;
}

function averageEntropy(weights: Matrix): number {
  let sum = 0;
  for (const value of weights.data) if (value > 0) sum -= value * Math.log(value);
  return sum / weights.rows;
}
