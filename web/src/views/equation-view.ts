/** The tab Equation: how the weights of a step and its context are computed, from the query and the keys. */
import { css, html, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import { checkEquation, computeRow, explainSymbols, knowsEquation, UNCHANGED, type Row, type Stage, type Toggles } from "../equation.js";
import { at, average, cached } from "../arrays.js";
import { findForced, findMasked, isAblated } from "../edits.js";
import type { Cell, Figure } from "../figures.js";
import { chooseSlots, FlowFigure, limitKeys, mixRows, summarize, type FlowFrame, type Order } from "../flow.js";
import { renderFormula } from "../math.js";
import { shared } from "../styles.js";
import { findAxes, findLayers, formatNumber, formatPercent, labelToken, type AttentionEntry, type Axes, type Mechanism, type TraceDocument } from "../trace.js";
import { View } from "./base.js";
import type { CellEvent } from "./canvas-figure.js";
import "./canvas-figure.js";
import { renderHypotheses, renderMapControls, renderSegments } from "./controls.js";

/** Past this number of keys, they are sorted by weight unless the reader chooses an order. */
const MANY_KEYS = 12;
/** How long numbers move when they change, and how long a stage is shown, in milliseconds. */
const MOVE = 350;
const PAUSE = 2500;
const MOST_COMPUTED = 8;
/** The width of the exported figure, relative to the size of its text. */
const PAPER_WIDTH = 84;

interface Loaded {
  trace: TraceDocument;
  entry: AttentionEntry;
  mechanism: Mechanism;
  /** The heads that are drawn. */
  heads: number[];
  step: number;
  steps: number;
}

@customElement("equation-view")
export class EquationView extends View {
  static override styles = [
    shared,
    css`
      .stack, .plot { grid-template-columns: minmax(0, 1fr); }
      .formulas { gap: var(--space-2) var(--space-5); min-height: 2.6em; }
      math .active { background: var(--tint); color: var(--accent); }
      .check { display: flex; flex-wrap: wrap; gap: 0 var(--space-2); align-items: baseline; max-width: none; }
      .check > span:first-child { white-space: nowrap; }
      .check b { color: var(--good); }
      .check.bad b { color: var(--bad); }
      #stage-note { min-height: 1.5em; max-width: none; }
      .panel { gap: 12px; }
      input[type="range"] { accent-color: var(--accent); width: 120px; }
      input[type="checkbox"] { accent-color: var(--accent); width: 17px; height: 17px; }
    `,
  ];

  @state() private loaded: TraceDocument | null = null;
  @state() private isPlaying = false;
  private timer: ReturnType<typeof setInterval> | undefined;
  private readonly checks = new WeakMap<AttentionEntry, number>();
  private readonly computed = cached((_entry: AttentionEntry) => new Map<string, Row[]>());
  private line = 0;
  /** Numbers move from those that were drawn to those of the state. */
  private drawn: readonly Row[] = [];
  private from: readonly Row[] = [];
  private to: readonly Row[] = [];
  private start = 0;

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.pause();
  }

  override createPaperFigure(fontSize: number): Figure | null {
    const part = this.chosen;
    return part && this.createFigure(part, this.compute(part, this.store.state.toggles), { width: PAPER_WIDTH * fontSize, fontSize, focus: null, stage: null });
  }

  override get data(): unknown {
    const part = this.chosen;
    if (!part) return this.store.trace;
    const { toggles } = this.store.state;
    const list = ({ name, formula, values }: Stage): unknown => ({ name, formula, values: Array.from({ length: values.rows }, (_, row) => [...values.row(row)]) });
    const heads = this.compute(part, toggles).map(({ stages, weights, context }, index) => ({
      head: at(part.heads, index),
      stages: stages.map(list),
      weights: [...weights],
      context: context && [...context],
    }));
    return { attention: part.entry.name, step: part.step, toggles, heads };
  }

  protected override willUpdate(): void {
    const { trace } = this.store;
    // Queries and keys are large, so they are read when this tab is open.
    if (trace && this.store.isCurrent) this.load(trace, () => this.store.fetchTrace({ queries: true }), (complete) => (this.loaded = complete));
  }

  private get chosen(): Loaded | null {
    const trace = this.loaded;
    if (!trace) return null;
    const { role, hypothesis, head } = this.store.state;
    const layers = findLayers(trace, role, hypothesis);
    const { layer, row } = this.store;
    const entry = layers[typeof layer === "number" ? Math.min(layer, layers.length - 1) : layers.length - 1];
    if (!entry?.inputs) return null;
    const mechanism = trace.mechanisms[entry.name];
    const steps = entry.shape[entry.shape.length - 2];
    if (!steps || !mechanism || !knowsEquation(mechanism)) return null;
    const heads = typeof head === "number" ? [Math.min(head, mechanism.heads - 1)] : [...Array(mechanism.heads).keys()];
    return { trace, entry, mechanism, heads, step: Math.min(row, steps - 1), steps };
  }

  private axes(part: Loaded): Axes {
    return findAxes(part.trace, part.entry.role, this.store.state.hypothesis);
  }

  /** Compute the heads that are drawn. The last results are kept. */
  private compute({ entry, mechanism, heads, step }: Loaded, toggles: Toggles): Row[] {
    const computed = this.computed(entry);
    const key = JSON.stringify([heads, step, toggles]);
    const rows = computed.get(key) ?? heads.map((head) => computeRow(entry, mechanism, head, step, toggles));
    if (computed.size > MOST_COMPUTED) computed.clear();
    computed.set(key, rows);
    return rows;
  }

  /** Return the numbers to draw now. */
  private move(part: Loaded): readonly Row[] {
    const target = this.compute(part, this.store.state.toggles);
    if (target !== this.to) {
      this.from = this.drawn.length === target.length && !matchMedia("(prefers-reduced-motion: reduce)").matches ? this.drawn : target;
      this.to = target;
      this.start = performance.now();
    }
    const share = (performance.now() - this.start) / MOVE;
    if (share >= 1 || this.from === target) return (this.drawn = target);
    requestAnimationFrame(() => this.requestUpdate());
    return (this.drawn = target.map((row, index) => mixRows(at(this.from, index), row, share * (2 - share))));
  }

  private createFigure(part: Loaded, rows: readonly Row[], frame: FlowFrame): FlowFigure {
    const { columns, rows: outputs } = this.axes(part);
    const { tail } = this.store.state;
    const order = this.order(part);
    const model = this.compute(part, UNCHANGED);
    const isOverview = rows.length > 1;
    const lanes = rows.map((row, index) => ({
      name: `Head ${at(part.heads, index) + 1}${isAblated(part.trace.edits, part.entry.name, at(part.heads, index)) ? ", off" : ""}`,
      row: isOverview ? summarize(row) : row,
      // The weights of the model: toggles do not move rows.
      slots: chooseSlots(at(model, index).weights, order, limitKeys(order, isOverview, tail)),
    }));
    return new FlowFigure({ ...frame, lanes, keys: columns, struck: new Set(part.entry.role === "decoder-self" ? [] : findMasked(part.trace)), output: outputs[part.step] ?? "" });
  }

  /** The space of the diagram on the page, and what is marked in it. */
  private get frame(): FlowFrame {
    const { stage } = this.store.state;
    const fontSize = 0.8 * parseFloat(getComputedStyle(document.documentElement).fontSize);
    return { width: Math.max(280, this.measureWidth(".plot", 1200)), fontSize, focus: stage === null ? null : this.store.findColumn(), stage, isPartial: this.isPlaying };
  }

  private order(part: Loaded): Order {
    const { stages, weights } = at(this.compute(part, UNCHANGED), 0);
    return this.store.state.order || (weights.length > MANY_KEYS && !stages.some((each) => each.curve) ? "weight" : "position");
  }

  protected override render(): TemplateResult {
    if (!this.store.trace?.attention.length) return html`<p class="panel">This model has no attention.</p>`;
    if (!this.loaded) return html`${this.renderFailure() || html`<p class="panel muted">Reading queries and keys…</p>`}`;
    const part = this.chosen;
    if (!part) return html`<p class="panel">The trace has no queries, or the equation is unknown. The tab Attention shows the weights.</p>`;
    const figure = this.createFigure(part, this.move(part), this.frame);
    const { tail } = this.store.state;
    return html`
      <div class="stack">
        ${this.renderFailure()}
        <tool-bar class="row" aria-label="What is shown">
          ${renderMapControls(this.store, true)} ${this.renderStepControl(part)} ${renderHypotheses(this.store)}
          ${renderSegments<Order>("Order of the keys", [["position", "By position"], ["weight", "By weight"]], this.order(part), (value) => this.store.show({ order: value }))}
          <button type="button" id="play" class="primary" aria-pressed=${this.isPlaying} @click=${() => (this.isPlaying ? this.pause() : this.play())}>${this.isPlaying ? "Pause" : "Play"}</button>
        </tool-bar>
        <section class="panel stack" aria-label="Equation">
          ${this.renderFormulas(part, figure)} ${this.renderToggles(part)} ${this.renderNote(figure)}
          <div class="plot">
            <canvas-figure
              .figure=${figure}
              .focused=${this.findFocus(figure)}
              .size=${{ rows: figure.lines.length, columns: figure.stages.length }}
              label="The computation of the context"
              description="The up and down arrow keys move between keys, the left and right ones between stages"
              @cell-focus=${(event: CellEvent) => this.focusCell(figure, event)}
              @cell-select=${(event: CellEvent) => this.selectCell(part, figure, event)}
            ></canvas-figure>
          </div>
          ${tail || figure.lines.some((line) => line.slot === null)
            ? html`<div><button type="button" id="tail" aria-pressed=${tail} @click=${() => this.store.show({ tail: !tail })}>${tail ? "Show fewer keys" : "Show more keys"}</button></div>`
            : ""}
          ${this.renderSymbols(part)}
          ${this.renderCheck(part)}
        </section>
      </div>
    `;
  }

  private renderStepControl(part: Loaded): TemplateResult {
    const { rows, rowName } = this.axes(part);
    const forced = rowName === "output" ? findForced(part.trace) : new Set();
    return html`<label class="field">Step
      <select id="query" @change=${(event: Event) => this.store.show({ row: Number((event.target as HTMLSelectElement).value) })}>
        ${rows.map((token, index) => html`<option value=${index} ?selected=${index === part.step}>${index + 1}. ${labelToken(token)}${forced.has(index) ? " (forced)" : ""}</option>`)}
      </select></label>`;
  }

  /** The equation. The term of the active stage is highlighted. */
  private renderFormulas(part: Loaded, figure: FlowFigure): TemplateResult {
    const lines = this.findFormulas(part).filter((formula) => / [=←] /.test(formula));
    const active = figure.stages[this.store.state.stage ?? -1]?.formula ?? "";
    const line = lines.find((formula) => formula === active) ?? lines.find((formula) => active && formula.includes(active));
    return html`<div class="row formulas">${lines.map((formula) => renderFormula(formula, formula === line ? active : ""))}</div>`;
  }

  private renderSymbols(part: Loaded): TemplateResult {
    const { symbols, learned } = explainSymbols(this.findFormulas(part));
    const parameters = learned.map((symbol, index) => html`${index ? ", " : ""}${renderFormula(symbol)}`);
    return html`<div class="row muted small" id="symbols">
      ${symbols.map(([symbol, meaning]) => html`<span>${renderFormula(symbol)}: ${meaning}</span>`)} ${learned.length ? html`<span>${parameters}: learned parameters</span>` : ""}
    </div>`;
  }

  private findFormulas({ mechanism: { heads } }: Loaded): string[] {
    const { stages } = at(this.to, 0);
    const formulas = stages.flatMap(({ inputs, formula, total }) => [...inputs.map((term) => term.formula), formula, total?.formula ?? ""]);
    return [...new Set(heads > 1 ? [...formulas, `c = [c_1; …; c_${heads}]`] : formulas)];
  }

  private renderCheck(part: Loaded): TemplateResult {
    if (part.trace.edits.some((edit) => edit["attention"] === part.entry.name)) {
      return html`<p class="check small" id="check">The edits change weights of this attention, so the weights do not match the equation.</p>`;
    }
    const error = this.checks.get(part.entry) ?? checkEquation(part.entry, part.mechanism);
    this.checks.set(part.entry, error);
    return html`<p class="check small ${error < 1e-5 ? "" : "bad"}" id="check">
      <span>max |page − model| = <b class="number" id="error" data-value=${error}>${error.toExponential(1).replace("-", "−")}</b></span>
      <span class="muted">The page computes the weights of all steps and heads of this attention in float64 from queries and keys, and compares them with those of the model.</span>
    </p>`;
  }

  private renderToggles(part: Loaded): TemplateResult {
    const { toggles } = this.store.state;
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
      ${JSON.stringify(toggles) === JSON.stringify(UNCHANGED) ? "" : html`<button type="button" id="reset" @click=${() => this.store.show({ toggles: UNCHANGED })}>Reset</button> ${this.renderEffect(part)}`}
    </div>`;
  }

  private renderEffect(part: Loaded): TemplateResult {
    const model = this.compute(part, UNCHANGED);
    const moved = this.to.map(({ weights }, head) => weights.reduce((sum, value, slot) => sum + Math.abs(value - at(at(model, head).weights, slot)), 0) / 2);
    return html`<span id="effect" class="small">This change moves ${formatPercent(average(moved))} of the attention.</span>`;
  }

  /** The focused number in each head, and what its stage computes. */
  private renderNote(figure: FlowFigure): TemplateResult {
    const { stage } = this.store.state;
    const active = stage === null ? undefined : figure.stages[stage];
    if (active) return html`<p id="stage-note"><b>${active.name}</b> <span class="number">${this.describe(figure, active, this.store.findColumn())}</span> <span class="muted">${active.note}</span></p>`;
    const heads = "Select a head to see all of its stages. The contexts of the heads are concatenated; in a Transformer, the output projection follows.";
    return html`<p id="stage-note" class="muted">Point at a key to follow it through all stages, and to read what each stage computes. ${figure.options.lanes.length > 1 ? heads : ""}</p>`;
  }

  private describe(figure: FlowFigure, stage: Stage, slot: number): string {
    const { lanes } = figure.options;
    const numbers = lanes.map(({ name, row }) => {
      const { values, isShare } = at(row.stages, figure.stages.indexOf(stage));
      const value = values.at(slot, 0);
      const text = values.columns > 1 ? `${values.columns} units` : isShare ? formatPercent(value) : formatNumber(value);
      return lanes.length > 1 ? `${name.toLowerCase()} ${text}` : text;
    });
    return `of “${figure.labelKey(slot)}”: ${numbers.join(", ")}.`;
  }

  /** A key has a row in each head, so the focused row is kept. */
  private findFocus(figure: FlowFigure): Cell {
    const { stage } = this.store.state;
    const column = this.store.findColumn();
    const { slot = -1 } = figure.lines[this.line] ?? {};
    const row = slot === null || slot === column ? this.line : figure.lines.findIndex((line) => line.slot === column);
    return { row: Math.max(0, row), column: stage ?? 0 };
  }

  private focusCell(figure: FlowFigure, { detail: { row, column } }: CellEvent): void {
    const line = at(figure.lines, row);
    const stage = at(figure.stages, column);
    this.line = row;
    this.store.show({ stage: column, column: line.slot ?? this.store.state.column });
    this.store.announce(line.slot === null ? figure.labelLine(line) : `${stage.name} ${this.describe(figure, stage, line.slot)}`);
  }

  /** The row of the other keys shows them; a head of an overview is opened. */
  private selectCell(part: Loaded, figure: FlowFigure, { detail: { row } }: CellEvent): void {
    const line = at(figure.lines, row);
    if (part.heads.length > 1) this.store.show({ head: at(part.heads, line.lane), stage: null });
    else if (line.slot === null) this.store.show({ tail: true });
  }

  /** Show one stage after the other, and one step after the other. */
  private play(): void {
    this.isPlaying = true;
    this.timer = setInterval(() => this.advance(), PAUSE);
    this.advance();
  }

  private pause(): void {
    clearInterval(this.timer);
    this.isPlaying = false;
  }

  private advance(): void {
    const part = this.chosen;
    if (!part) return this.pause();
    const { stage } = this.store.state;
    const { stages } = this.createFigure(part, this.to, this.frame);
    if (stage !== null && stage + 1 < stages.length) return this.store.show({ stage: stage + 1 });
    if (stage !== null && part.step + 1 === part.steps) {
      this.store.show({ stage: null });
      return this.pause();
    }
    const row = stage === null ? part.step : part.step + 1;
    const { weights } = at(this.compute({ ...part, step: row }, UNCHANGED), 0);
    this.store.show({ row, stage: 0, column: weights.indexOf(Math.max(...weights)) });
  }
}
