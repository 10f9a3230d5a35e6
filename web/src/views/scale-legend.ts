/** The legend of colors that are not on a figure. */
import { css, html, LitElement, type TemplateResult } from "lit";
import { customElement, property, query } from "lit/decorators.js";
import { ScaleFigure, type Scale } from "../color-scale.js";
import { paint } from "../figures.js";
import { currentPalette } from "../palette.js";

const FONT_SIZE = 12;

@customElement("scale-legend")
export class ScaleLegend extends LitElement {
  static override styles = css`:host, canvas { display: block; }`;

  /** A new object whenever the colors of the page may have changed. */
  @property({ attribute: false }) scale!: Scale;
  @query("canvas") private canvas!: HTMLCanvasElement;

  protected override render(): TemplateResult {
    return html`<canvas role="img" aria-label=${`Color scale: ${this.scale.ticks.join(", ")}`}></canvas>`;
  }

  protected override updated(): void {
    paint(this.canvas, new ScaleFigure(this.scale, FONT_SIZE), currentPalette());
  }
}
