/** The tab Steps: walk through the decoding. */
import { css, html, nothing, svg, type PropertyValues, type TemplateResult } from "lit";
import { customElement } from "lit/decorators.js";
import { at } from "../arrays.js";
import { BeamFigure, COLUMN, findStart, FIRST_X, HALF_HEIGHT, HALF_WIDTH, listPath, measureBeam, NODE_TEXT, placeBeam, SCORE_Y, TOKEN_Y, type PlacedNode } from "../beam.js";
import { findForced, mergeEdit } from "../edits.js";
import { BarsFigure, FigureRow, ScaledFigure, type Figure } from "../figures.js";
import { shared } from "../styles.js";
import { formatNumber, formatPercent, labelToken, listPossible, toProbability, type Edit, type Step } from "../trace.js";
import { View } from "./base.js";
import { renderHypotheses, renderRefusal } from "./controls.js";

@customElement("steps-view")
export class StepsView extends View {
  static override styles = [
    shared,
    css`
      .body { display: grid; grid-template-columns: minmax(340px, 5fr) minmax(0, 7fr); gap: var(--space-3); align-items: start; }
      @media (max-width: 1000px) { .body { grid-template-columns: minmax(0, 1fr); } }
      .prefix { font-size: var(--size-4); line-height: 1.6; }
      .prefix button { font-size: inherit; border: 0; background: none; padding: 0 3px; min-height: 0; color: var(--muted); line-height: 1.4; }
      .prefix button[aria-current="step"] { background: var(--accent-fill); color: var(--on-accent); border-radius: 5px; }
      .prefix button.done { color: var(--ink); }
      ol { margin: 0; padding: 0; list-style: none; display: grid; gap: 6px; }
      ol li { display: grid; grid-template-columns: 5em 1fr 4.4em; gap: 10px; align-items: center; }
      ol li bdi { text-align: end; overflow: hidden; text-overflow: ellipsis; white-space: pre; }
      li.chosen { font-weight: 650; }
      .bar { height: 20px; border-radius: 4px; background: var(--line); overflow: hidden; }
      .bar i { display: block; height: 100%; background: var(--line-strong); transition: width 150ms; }
      li.chosen .bar i { background: var(--accent); }
      dl { display: flex; gap: var(--space-5); margin: 0; }
      dt { color: var(--muted); font-size: var(--size-1); }
      dd { margin: 0; font-size: var(--size-4); font-weight: 650; line-height: 1.2; }
      svg text { font-size: 13px; fill: var(--ink); dominant-baseline: central; }
      svg .score { font-size: 11px; fill: var(--muted); font-variant-numeric: tabular-nums; }
      svg .node { cursor: pointer; outline: none; }
      svg .node:is(:hover, :focus-visible) .box { stroke: var(--accent); stroke-width: 2.5; stroke-dasharray: none; }
      svg .edge { fill: none; stroke: var(--line-strong); stroke-width: 1.3; }
      svg .box { fill: var(--panel); stroke: var(--line-strong); }
      svg .kept .box { stroke: var(--accent); }
      svg .finished .box { fill: var(--accent-fill); stroke: var(--accent-fill); }
      svg .finished text { fill: var(--on-accent); font-weight: 600; }
      svg .pruned text { fill: var(--muted); }
      svg .pruned .box { stroke-dasharray: 3 3; }
      svg .path { stroke: var(--accent); stroke-width: 2.5; }
      svg .now { fill: var(--tint); }
      svg .step { fill: var(--muted); font-size: 11px; }
      #beam {
        /* A shadow at each side at which there are more steps. */
        --shadow: color-mix(in srgb, var(--ink) 28%, transparent);
        background: linear-gradient(to right, var(--panel) 40%, transparent) left / 40px 100% no-repeat local,
          linear-gradient(to left, var(--panel) 40%, transparent) right / 40px 100% no-repeat local,
          linear-gradient(to right, var(--shadow), transparent) left / 12px 100% no-repeat, linear-gradient(to left, var(--shadow), transparent) right / 12px 100% no-repeat;
        scrollbar-width: thin; scrollbar-color: var(--line-strong) transparent;
      }
      .legend { display: flex; gap: var(--space-3); }
      .legend span::before { content: ""; display: inline-block; width: 14px; height: 10px; margin-inline-end: 6px; border-radius: 3px; border: 1.5px solid var(--line-strong); }
      .legend .kept::before { border-color: var(--accent); }
      .legend .pruned::before { border-style: dashed; }
      .legend .finished::before { background: var(--accent-fill); border-color: var(--accent-fill); }
      .entropy { display: flex; align-items: end; gap: 3px; height: 64px; }
      .entropy button { flex: 1; max-width: 40px; min-height: 0; height: 100%; padding: 0; border: 0; background: none; display: flex; align-items: end; }
      .entropy i { display: block; width: 100%; min-height: 2px; background: var(--line-strong); border-radius: 3px 3px 0 0; }
      .entropy button[aria-current="step"] i { background: var(--accent); }
    `,
  ];

  /** The step that the tree was scrolled to. */
  private visible = 0;

  private get steps(): Step[] {
    return this.store.trace?.steps[this.store.state.hypothesis] ?? [];
  }

  private get index(): number {
    return Math.min(this.store.row, this.steps.length - 1);
  }

  override createPaperFigure(fontSize: number): Figure | null {
    const step = this.steps[this.index];
    if (!step) return null;
    const bars = listPossible(step).map((each) => ({ label: each.token, value: toProbability(each.log_prob), isChosen: each.id === step.id }));
    const parts: [string, Figure][] = [[`Step ${this.index + 1}`, new BarsFigure("probability", bars, fontSize)]];
    const { placed } = this;
    if (placed) parts.push(["Beam search", new ScaledFigure(new BeamFigure(placed), fontSize / NODE_TEXT)]);
    return new FigureRow(parts, fontSize);
  }

  /** The tree of beam search; null for greedy search. */
  private get placed(): PlacedNode[][] | null {
    const beam = this.store.trace?.beam;
    return beam?.length ? placeBeam(beam, this.steps.map((step) => step.id)) : null;
  }

  protected override render(): TemplateResult {
    const { steps, index } = this;
    const step = steps[index];
    const forced = findForced(this.store.trace!);
    if (!step) return html`<p class="panel">This prediction has no steps.</p>`;
    return html`
      <div class="stack" @keydown=${this.move}>
        <section class="panel stack" aria-label="Step">
          <div class="row">
            <button type="button" id="previous" ?disabled=${index === 0} @click=${() => this.go(index - 1)}>← Previous</button>
            <button type="button" id="next" ?disabled=${index === steps.length - 1} @click=${() => this.go(index + 1)}>Next →</button>
            <h2>Step ${index + 1} of ${steps.length}</h2>
            ${renderHypotheses(this.store)}
          </div>
          <div class="prefix" dir="auto">
            ${steps.map((each, position) => html`<button type="button" class="${position < index ? "done" : ""} ${forced.has(position) ? "forced" : ""}" title=${forced.has(position) ? "forced" : nothing} tabindex=${position === index ? 0 : -1} aria-current=${position === index ? "step" : "false"} @click=${() => this.go(position)}>${labelToken(each.token)}</button>`)}
          </div>
        </section>
        <div class="body">
          <section class="panel stack" aria-label="Most likely tokens">
            <dl>
              <div><dt>Probability</dt><dd class="number">${formatPercent(toProbability(step.log_prob))}</dd></div>
              <div><dt>Log-probability</dt><dd class="number">${formatNumber(step.log_prob)}</dd></div>
              <div><dt>Entropy</dt><dd class="number">${formatNumber(step.entropy, 2)} <span class="small muted">nats</span></dd></div>
            </dl>
            <ol>
              ${listPossible(step).map((each) => {
                const probability = toProbability(each.log_prob);
                return html`<li class=${each.id === step.id ? "chosen" : ""}><bdi>${labelToken(each.token)}</bdi><span class="bar"><i .style=${`width:${100 * probability}%`}></i></span><span class="number">${formatPercent(probability)}</span></li>`;
              })}
            </ol>
            <h3>Entropy of each step</h3>
            <div class="entropy">${this.renderEntropy()}</div>
          </section>
          ${this.renderBeam()}
        </div>
        ${this.renderStates()}
      </div>
    `;
  }

  private renderEntropy(): TemplateResult[] {
    const largest = Math.max(0.1, ...this.steps.map((step) => step.entropy));
    return this.steps.map(
      (step, position) => html`<button type="button" tabindex="-1" aria-current=${position === this.index ? "step" : "false"} aria-label=${`Step ${position + 1}: ${formatNumber(step.entropy, 2)} nats`} title=${`${labelToken(step.token)}: ${formatNumber(step.entropy, 2)} nats`} @click=${() => this.go(position)}><i .style=${`height:${(100 * step.entropy) / largest}%`}></i></button>`,
    );
  }

  private renderBeam(): TemplateResult | string {
    const { placed } = this;
    if (!placed) return html`<section class="panel"><p class="muted">Greedy search has no beam. Choose a larger beam to see hypotheses.</p></section>`;
    const { width, height } = measureBeam(placed);
    return html`<section class="panel stack" aria-label="Beam search">
      <div class="row"><h2>Beam search</h2><span class="legend small muted"><span class="kept">kept</span><span class="finished">finished</span><span class="pruned">pruned</span></span></div>
      <p class="muted small">Below a token is the log-probability of the output up to it. ${this.store.client.isLive ? "Select a token: the output is fixed up to it, and the model decodes the rest again." : ""}</p>
      ${renderRefusal(this.store, "beam")}
      <div class="scroll" id="beam" role="group" aria-label="Candidates of each step">
        <svg width=${width} height=${height}>
          <rect class="now" x=${FIRST_X + this.index * COLUMN - 40} y="0" width=${COLUMN - 12} height=${height} rx="8"></rect>
          ${placed.flatMap((nodes) => nodes.map((node) => svg`<path class="edge ${node.isOnPath ? "path" : ""}" d=${edge(node)}></path>`))}
          ${placed.map((nodes, step) => svg`<text class="step" x=${FIRST_X + step * COLUMN} y="10" text-anchor="middle">${step + 1}</text><g>${nodes.map((node, index) => this.renderNode(node, step, step === this.index && index === Math.max(0, nodes.findIndex((each) => each.isOnPath))))}</g>`)}
        </svg>
      </div>
    </section>`;
  }

  /** The names of the recorded states and gates, whose values the document contains. */
  private renderStates(): TemplateResult | string {
    const recorded = (this.store.trace!.states ?? []).filter((each) => each.hypothesis === null || each.hypothesis === this.store.state.hypothesis);
    if (!recorded.length) return "";
    return html`<section class="panel stack" aria-label="Recorded states and gates">
      <h2>Recorded states and gates</h2>
      <ul>${recorded.map((each) => html`<li>${each.name} (${each.direction}): ${[...Object.keys(each.states), ...Object.keys(each.gates)].join(", ")}</li>`)}</ul>
    </section>`;
  }

  private renderNode(node: PlacedNode, step: number, isStop: boolean): unknown {
    const label = labelToken(node.token);
    const select = (event: KeyboardEvent): void => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.force(node, step);
    };
    return svg`<g class="node ${node.outcome}" role="button" tabindex=${isStop ? 0 : -1}
      @click=${() => this.force(node, step)} @keydown=${select}>
      <title>Step ${step + 1}: ${label}, ${node.outcome}, log-probability ${formatNumber(node.score)}</title>
      <rect class="box" x=${node.x - HALF_WIDTH} y=${node.y - HALF_HEIGHT} width=${2 * HALF_WIDTH} height=${2 * HALF_HEIGHT} rx="6"></rect>
      <text x=${node.x} y=${node.y + TOKEN_Y} text-anchor="middle">${label.length > 7 ? `${label.slice(0, 6)}…` : label}</text>
      <text class="score" x=${node.x} y=${node.y + SCORE_Y} text-anchor="middle">${formatNumber(node.score, 2)}</text>
    </g>`;
  }

  /** Fix the output up to a node. A node of the present output is only selected. */
  private force(node: PlacedNode, step: number): void {
    const path = listPath(node);
    const best = this.store.trace!.steps[0] ?? [];
    const first = path.findIndex((each, position) => each.id !== best[position]?.id);
    this.go(step);
    if (node.isOnPath || first < 0 || !this.store.client.isLive) return;
    const forced = path.slice(first).map(({ id }, index) => ({ kind: "force_token", step: first + index, token: id }));
    void this.store.changeEdits(forced.reduce<Edit[]>(mergeEdit, this.store.state.edits), "beam");
  }

  private move(event: KeyboardEvent): void {
    const node = (event.target as Element).closest<SVGElement>(".node");
    const beside = { ArrowUp: node?.previousElementSibling, ArrowDown: node?.nextElementSibling }[event.key];
    if (beside) {
      event.preventDefault();
      (beside as SVGElement).focus();
      return;
    }
    if ((event.target as HTMLElement).tagName === "SELECT") return;
    const targets: Record<string, number> = { ArrowRight: this.index + 1, ArrowLeft: this.index - 1, Home: 0, End: this.steps.length - 1 };
    const target = targets[event.key];
    if (target === undefined || target < 0 || target >= this.steps.length) return;
    event.preventDefault();
    this.go(target);
    void this.updateComplete.then(() => this.shadowRoot!.querySelector<HTMLElement>(node ? ".node[tabindex='0']" : ".prefix [aria-current='step']")?.focus());
  }

  private go(row: number): void {
    this.store.show({ row });
    const step = at(this.steps, this.index);
    this.store.announce(`Step ${this.index + 1}: ${labelToken(step.token)}, ${formatPercent(toProbability(step.log_prob))}`);
  }

  protected override updated(changed: PropertyValues): void {
    super.updated(changed);
    const beam = this.shadowRoot!.querySelector("#beam");
    if (beam && this.index !== this.visible) beam.scrollLeft = FIRST_X + this.index * COLUMN - beam.clientWidth / 2;
    this.visible = this.index;
  }
}

function edge(node: PlacedNode): string {
  const [x, y] = findStart(node);
  const end = node.x - HALF_WIDTH;
  const middle = (x + end) / 2;
  return `M${x} ${y}C${middle} ${y} ${middle} ${node.y} ${end} ${node.y}`;
}
