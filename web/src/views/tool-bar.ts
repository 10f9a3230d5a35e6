/** A row of controls that is one stop of the tabulator key: the arrow keys move between the controls. */

const CONTROLS = "button:not(:disabled), select:not(:disabled), input[type=checkbox]:not(:disabled)";

export class ToolBar extends HTMLElement {
  private current: Element | null = null;
  private readonly observer = new MutationObserver(() => this.arrange());

  connectedCallback(): void {
    this.role = "toolbar";
    this.addEventListener("keydown", this.move);
    this.addEventListener("focusin", this.arrange);
    this.observer.observe(this, { childList: true, subtree: true, attributeFilter: ["disabled"] });
    this.arrange();
  }

  disconnectedCallback(): void {
    this.observer.disconnect();
  }

  private get controls(): HTMLElement[] {
    return [...this.querySelectorAll<HTMLElement>(CONTROLS)];
  }

  /** Let the tabulator key stop at the control that had the focus last. */
  private readonly arrange = (event?: Event): void => {
    const { controls } = this;
    if (event) this.current = event.target as Element;
    const current = controls.find((each) => each === this.current) ?? controls[0];
    for (const each of controls) each.tabIndex = each === current ? 0 : -1;
  };

  private readonly move = (event: KeyboardEvent): void => {
    const offset = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const { controls } = this;
    const index = controls.indexOf(event.target as HTMLElement);
    if (!offset || index < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    controls[(index + offset + controls.length) % controls.length]!.focus();
  };
}

customElements.define("tool-bar", ToolBar);
