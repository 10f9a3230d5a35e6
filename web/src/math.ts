/**
 * Formulas as MathML. The notation: `x_j` and `x_{i ≤ j}` are subscripts, `{a} / {b}` is a fraction, `√{d}` is a root, and
 * words of several letters are functions. `⟦…⟧` is a part that is highlighted.
 */

import { at } from "./arrays.js";

const NAMESPACE = "http://www.w3.org/1998/Math/MathML";

function create(name: string, ...children: (Element | string)[]): Element {
  const element = document.createElementNS(NAMESPACE, name);
  element.append(...children);
  return element;
}

/** The space around a word. */
function space(): Element {
  const element = create("mspace");
  element.setAttribute("width", "0.2em");
  return element;
}

class Parser {
  private position = 0;
  private readonly characters: string[];

  constructor(text: string) {
    this.characters = [...text];
  }

  /** Parse up to a closing bracket or the end. */
  parse(): Element {
    const row = create("mrow");
    while (this.position < this.characters.length && !"}⟧".includes(at(this.characters, this.position))) {
      if (this.characters[this.position] === " ") this.position += 1;
      else row.append(this.parseFraction());
    }
    return row;
  }

  private parseFraction(): Element {
    const isGroup = this.characters[this.position] === "{";
    const numerator = this.parseScript();
    if (!isGroup || this.characters.slice(this.position, this.position + 3).join("") !== " / ") return numerator;
    this.position += 3;
    return create("mfrac", numerator, this.parseScript());
  }

  private parseScript(): Element {
    const base = this.parseAtom();
    if (this.characters[this.position] !== "_") return base;
    this.position += 1;
    const isSum = base.textContent === "∑";
    return create(isSum ? "munder" : "msub", base, this.parseAtom());
  }

  private parseAtom(): Element {
    const character = this.characters[this.position] ?? "";
    this.position += 1;
    if (character === "{" || character === "⟦") {
      const group = this.parse();
      this.position += 1;
      if (character === "⟦") group.setAttribute("class", "active");
      return group;
    }
    if (character === "√") return create("msqrt", this.parseAtom());
    if (/\d/.test(character)) return create("mn", character);
    if (!/\p{L}/u.test(character)) return create("mo", character);
    let end = this.position;
    while (/[a-z]/.test(character) && /[a-z]/.test(this.characters[end] ?? "")) end += 1;
    const name = [character, ...this.characters.slice(this.position, end)].join("");
    this.position = end;
    // A subscript that is written without braces is one letter.
    if (name.length === 1) return create("mi", name);
    return create("mrow", space(), create("mi", name), this.characters[end] === "(" ? "" : space());
  }
}

/** Return the formula as a MathML element, with its first part that is equal to `active` highlighted. */
export function renderFormula(text: string, active = ""): Element {
  const math = create("math", new Parser(active ? text.replace(active, () => `⟦${active}⟧`) : text).parse());
  math.setAttribute("displaystyle", "true");
  math.setAttribute("aria-label", text.replace(/[{}]/g, ""));
  return math;
}
