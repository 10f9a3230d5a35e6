/** The tab Equation: how the weights of one step and head are computed, one card for each operation. */
import { css, html, type PropertyValues, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import { checkEquation, computeRow, knowsEquation, UNCHANGED, type Operation, type Row, type Toggles } from "../equation.js";
import { at } from "../arrays.js";
import { BarsFigure, MatrixFigure, paint, type Figure } from "../figures.js";
import { renderFormula } from "../math.js";
import { currentPalette, differenceColor } from "../palette.js";
import { shared } from "../styles.js";
import { findAxes, findLayers, formatNumber, formatPercent, labelToken, type AttentionEntry, type Mechanism, type TraceDocument } from "../trace.js";
import { View } from "./base.js";
import { renderHypotheses, renderMapControls } from "./controls.js";

const MOST_NUMBERS = 12;

interface Loaded {
  trace: TraceDocument;
  entry: AttentionEntry;
  mechanism: Mechanism;
  head: number;
  step: number;
}

@customElement("equation-view")
export class EquationView extends View {
  static override styles = [
    shared,
    css`
      .cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(380px, 100%), 1fr)); gap: var(--space-3); align-items: stretch; counter-reset: card; }
      .card { display: grid; gap: var(--space-2); align-content: start; position: relative; counter-increment: card; }
      .card h3::before { content: counter(card) " "; color: var(--muted); font-weight: 500; margin-inline-end: 4px; }
      .formula { font-size: var(--size-3); min-height: 2em; overflow-x: auto; overflow-y: hidden; }
      .slots { display: grid; grid-template-columns: auto 1fr auto; gap: 3px 8px; align-items: center; max-height: 330px; overflow: auto; }
      .slots bdi { text-align: end; max-width: 8em; overflow: hidden; text-overflow: ellipsis; white-space: pre; }
      .track { position: relative; height: 14px; background: var(--ramp-0); border-radius: 3px; }
      .track i { position: absolute; top: 0; bottom: 0; border-radius: 3px; background: var(--accent); }
      .track i.negative { background: #d9822b; }
      .vector { display: flex; flex-wrap: wrap; gap: 1px; }
      .vector span { width: 9px; height: 18px; border-radius: 2px; }
      .scalar { font-size: var(--size-5); font-weight: 650; line-height: 1.1; }
      canvas { max-width: 100%; border-radius: 4px; image-rendering: pixelated; }
      .check { max-width: none; display: flex; gap: var(--space-2); align-items: baseline; padding: 8px 14px; border-radius: 8px; background: var(--tint); }
      .check > span:first-child { white-space: nowrap; }
      .check b { color: var(--good); }
      .check.bad b { color: var(--bad); }
      input[type="range"] { accent-color: var(--accent); width: 140px; }
      input[type="checkbox"] { accent-color: var(--accent); width: 17px; height: 17px; }
      .numbers { color: var(--muted); font-size: var(--size-1); overflow-wrap: anywhere; }
      details summary { cursor: pointer; color: var(--muted); font-size: var(--size-1); }
    `,
  ];

  @state() private loaded: TraceDocument | null = null;
  private readonly checks = new WeakMap<AttentionEntry, number>();

  override createPaperFigure(fontSize: number): Figure | null {
    const part = this.computed;
    if (!part) return null;
    const { weights } = computeRow(part.entry, part.mechanism, part.head, part.step, this.store.state.toggles);
    const columns = this.axes(part).columns;
    const bars = [...weights].map((value, slot) => ({ label: columns[slot] ?? "", value, isChosen: value === Math.max(...weights) }));
    return new BarsFigure(`${part.mechanism.equation}; step ${part.step + 1}, head ${part.head + 1}`, bars, fontSize);
  }

  override get data(): unknown {
    const part = this.computed;
    if (!part) return this.store.trace;
    const { operations, weights } = computeRow(part.entry, part.mechanism, part.head, part.step, this.store.state.toggles);
    const toList = (operation: Operation): unknown =>
      operation.table ? Array.from({ length: operation.table.rows }, (_, row) => [...operation.table!.row(row)]) : [...operation.values];
    const rows = operations.map((each) => ({ title: each.title, formula: each.formula, values: toList(each) }));
    return { attention: part.entry.name, head: part.head, step: part.step, toggles: this.store.state.toggles, operations: rows, weights: [...weights] };
  }

  protected override willUpdate(): void {
    const { trace } = this.store;
    // Queries and keys are large, so they are read when this tab is open.
    if (trace && this.store.isCurrent) this.load(trace, () => this.store.fetchTrace({ queries: true }), (complete) => (this.loaded = complete));
  }

  private get computed(): Loaded | null {
    const trace = this.loaded;
    if (!trace) return null;
    const { role, hypothesis, head, row } = this.store.state;
    const layers = findLayers(trace, role, hypothesis);
    const { layer } = this.store;
    const entry = layers[typeof layer === "number" ? Math.min(layer, layers.length - 1) : layers.length - 1];
    if (!entry?.inputs) return null;
    const mechanism = trace.mechanisms[entry.name];
    const steps = entry.shape[entry.shape.length - 2];
    if (!steps || !mechanism || !knowsEquation(mechanism)) return null;
    return {
      trace,
      entry,
      mechanism,
      head: typeof head === "number" ? Math.min(head, mechanism.heads - 1) : 0,
      step: Math.min(row, steps - 1),
    };
  }

  private axes(part: Loaded): { rows: string[]; columns: string[] } {
    return findAxes(part.trace, part.entry.role, this.store.state.hypothesis);
  }

  protected override render(): TemplateResult {
    if (!this.store.trace?.attention.length) return html`<p class="panel">This model has no attention.</p>`;
    if (!this.loaded) return html`${this.renderFailure() || html`<p class="panel muted">Reading queries and keys…</p>`}`;
    const part = this.computed;
    if (!part) return html`<p class="panel">The page does not know the equation of this mechanism. The tab Attention shows its weights.</p>`;
    const { toggles } = this.store.state;
    const isChanged = JSON.stringify(toggles) !== JSON.stringify(UNCHANGED);
    const changed = computeRow(part.entry, part.mechanism, part.head, part.step, toggles);
    const model = isChanged ? computeRow(part.entry, part.mechanism, part.head, part.step, UNCHANGED) : changed;
    return html`
      <div class="stack">
        ${this.renderFailure()}
        <div class="row">
          ${renderMapControls(this.store, true)} ${this.renderStepControl(part)} ${renderHypotheses(this.store)}
        </div>
        <section class="panel stack" aria-label="Equation">
          <div class="row"><h2>${part.mechanism.equation}</h2><span class="muted small">score ${part.mechanism.score.kind}, scope ${part.mechanism.scope.kind}, selection ${part.mechanism.select.kind}, head ${part.head + 1} of ${part.mechanism.heads}</span></div>
          ${this.renderCheck(part)} ${this.renderToggles(part, toggles, isChanged)}
          ${isChanged ? this.renderEffect(part, model, changed) : ""}
        </section>
        <div class="cards">
          ${changed.operations.map((operation, index) => this.renderOperation(operation, index, this.axes(part).columns))}
        </div>
      </div>
    `;
  }

  private renderStepControl(part: Loaded): TemplateResult {
    const { rows } = this.axes(part);
    return html`<label class="field">Query
      <select id="query" @change=${(event: Event) => this.store.show({ row: Number((event.target as HTMLSelectElement).value) })}>
        ${rows.map((token, index) => html`<option value=${index} ?selected=${index === part.step}>${index + 1}. ${labelToken(token)}</option>`)}
      </select></label>`;
  }

  private renderCheck(part: Loaded): TemplateResult {
    if (part.trace.edits.some((edit) => edit["attention"] === part.entry.name)) {
      return html`<p class="check">The edits change weights of this attention, so they do not follow from the equation.</p>`;
    }
    const error = this.checks.get(part.entry) ?? checkEquation(part.entry, part.mechanism);
    this.checks.set(part.entry, error);
    return html`<p class="check ${error < 1e-5 ? "" : "bad"}" id="check">
      <span>max |page − model| = <b class="number" id="error" data-value=${error}>${error.toExponential(1).replace("-", "−")}</b></span>
      <span class="muted small">The page computes the weights of all steps and heads of this attention in float64 from queries and keys, and compares them with those of the model.</span>
    </p>`;
  }

  private renderToggles(part: Loaded, toggles: Toggles, isChanged: boolean): TemplateResult {
    const { kind, scaled } = part.mechanism.score;
    const isScaled = kind === "scaled_dot" || (kind === "projected" && scaled !== false);
    const change = (changes: Partial<Toggles>): void => this.store.show({ toggles: { ...toggles, ...changes } });
    const { columns } = this.axes(part);
    const addMask = (event: Event): void => {
      const select = event.target as HTMLSelectElement;
      if (select.value) change({ masked: [...new Set([...toggles.masked, Number(select.value)])] });
      select.value = "";
    };
    return html`<div class="row" role="group" aria-label="What if">
      <span class="muted small">What if</span>
      ${isScaled ? html`<label class="field"><input type="checkbox" id="no-scaling" .checked=${!toggles.scaling} @change=${(event: Event) => change({ scaling: !(event.target as HTMLInputElement).checked })} /> no scaling</label>` : ""}
      <label class="field"><input type="checkbox" id="hard" .checked=${toggles.hard} @change=${(event: Event) => change({ hard: (event.target as HTMLInputElement).checked })} /> hard</label>
      <label class="field">temperature <input type="range" id="temperature" min="-2" max="2" step="0.1" .value=${String(Math.log2(toggles.temperature))} aria-valuetext=${toggles.temperature.toFixed(2)} @input=${(event: Event) => change({ temperature: Number((2 ** Number((event.target as HTMLInputElement).value)).toFixed(3)) })} /> <span class="number">${toggles.temperature.toFixed(2)}</span></label>
      <label class="field">mask a key <select id="mask-key" @change=${addMask}><option value="">none</option>${columns.map((token, slot) => html`<option value=${slot}>${slot + 1}. ${labelToken(token)}</option>`)}</select></label>
      ${toggles.masked.map((slot) => html`<button type="button" aria-label=${`Unmask ${labelToken(columns[slot] ?? "")}`} @click=${() => change({ masked: toggles.masked.filter((each) => each !== slot) })}><bdi>${labelToken(columns[slot] ?? String(slot))}</bdi> ×</button>`)}
      ${isChanged ? html`<button type="button" class="primary" @click=${() => this.store.show({ toggles: UNCHANGED })}>Reset</button>` : ""}
    </div>`;
  }

  private renderEffect(part: Loaded, model: Row, changed: Row): TemplateResult {
    const moved = model.weights.reduce((sum, value, slot) => sum + Math.abs(value - at(changed.weights, slot)), 0) / 2;
    const { columns } = this.axes(part);
    const best = (row: Row): string => labelToken(columns[row.weights.indexOf(Math.max(...row.weights))] ?? "");
    return html`<p id="effect">This change moves ${formatPercent(moved)} of the attention. The largest weight is on <bdi>“${best(changed)}”</bdi>; in the model, on <bdi>“${best(model)}”</bdi>. The rest of the model is not computed again.</p>`;
  }

  private renderOperation(operation: Operation, index: number, columns: readonly string[]): TemplateResult {
    return html`<section class="panel card" aria-label=${operation.title}>
      <h3>${operation.title}</h3>
      <div class="formula" tabindex="-1">${renderFormula(operation.formula)}</div>
      ${this.renderValues(operation, index, columns)}
      ${operation.note ? html`<p class="muted small">${operation.note}</p>` : ""}
    </section>`;
  }

  private renderValues(operation: Operation, index: number, columns: readonly string[]): TemplateResult {
    if (operation.table) return html`<canvas data-table=${index} role="img" aria-label=${`${operation.table.rows} × ${operation.table.columns} numbers`}></canvas>`;
    if (operation.axis === "scalar") return html`<p class="scalar number">${formatNumber(at(operation.values, 0), 4)}</p>`;
    return operation.axis === "slots" ? this.renderSlots(operation, columns) : this.renderVector(operation);
  }

  private renderSlots(operation: Operation, columns: readonly string[]): TemplateResult {
    const finite = [...operation.values].filter(Number.isFinite);
    const largest = Math.max(0, ...finite);
    const smallest = Math.min(0, ...finite);
    const range = largest - smallest || 1;
    const zero = (100 * -smallest) / range;
    return html`<div class="slots" tabindex="0" role="group" aria-label=${`${operation.title}, one number per key`}>
      ${[...operation.values].map((value, slot) => {
        const size = Number.isFinite(value) ? (100 * Math.abs(value)) / range : 0;
        const start = value < 0 ? zero - size : zero;
        return html`<bdi>${labelToken(columns[slot] ?? String(slot))}</bdi><span class="track"><i class=${value < 0 ? "negative" : ""} .style=${`left:${start}%;width:${size}%`}></i></span><span class="number small">${formatNumber(value, 4)}</span>`;
      })}
    </div>`;
  }

  private renderVector(operation: Operation): TemplateResult {
    const values = [...operation.values];
    const largest = Math.max(...values.map(Math.abs)) || 1;
    const palette = currentPalette();
    return html`<div class="vector" role="img" aria-label=${`A vector of ${values.length} numbers`}>
        ${values.map((value, unit) => html`<span .style=${`background:${differenceColor(palette, value / largest)}`} title=${`${unit + 1}: ${formatNumber(value, 4)}`}></span>`)}
      </div>
      <p class="numbers number">(${values.slice(0, MOST_NUMBERS).map((value) => formatNumber(value, 2)).join(", ")}${values.length > MOST_NUMBERS ? `, … ${values.length} numbers` : ""})</p>`;
  }

  protected override updated(changed: PropertyValues): void {
    super.updated(changed);
    const part = this.computed;
    if (!part) return;
    const { operations } = computeRow(part.entry, part.mechanism, part.head, part.step, this.store.state.toggles);
    const columns = this.axes(part).columns;
    for (const canvas of this.shadowRoot!.querySelectorAll<HTMLCanvasElement>("canvas[data-table]")) {
      const table = operations[Number(canvas.dataset["table"])]?.table;
      if (!table) continue;
      const largest = table.data.reduce((best, value) => Math.max(best, Math.abs(value)), 0) || 1;
      const axes = { rows: columns.slice(0, table.rows), columns: Array.from({ length: table.columns }, () => ""), rowName: "slot", columnName: `${table.columns} units` };
      const options = { axes, colors: "signed", width: 340, height: 200, fontSize: null, focus: null, selected: [] } as const;
      paint(canvas, new MatrixFigure({ ...options, weights: table, largest }), currentPalette());
    }
  }
}
