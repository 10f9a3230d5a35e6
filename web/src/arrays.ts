/** Arrays of a trace document: base64 text to numbers. */

export type DType = "float16" | "float32" | "int64" | "uint8" | "bool";

export interface EncodedArray {
  shape: number[];
  dtype: DType;
  data: string;
}

/** An array in C order: the last axis varies fastest. */
export interface NDArray {
  shape: number[];
  data: Float64Array;
}

const WIDTHS: Record<DType, number> = { float16: 2, float32: 4, int64: 8, uint8: 1, bool: 1 };

/** The values of all half-precision floats: many arrays have a million of them. */
const HALVES = Float64Array.from({ length: 1 << 16 }, (_, bits) => toFloat(bits));

const READERS: Record<DType, (view: DataView, offset: number) => number> = {
  float16: (view, offset) => HALVES[view.getUint16(offset, true)],
  float32: (view, offset) => view.getFloat32(offset, true),
  int64: (view, offset) => Number(view.getBigInt64(offset, true)),
  uint8: (view, offset) => view.getUint8(offset),
  bool: (view, offset) => view.getUint8(offset),
};

/** Return the value of a half-precision float (IEEE 754 binary16), given its bits. */
export function toFloat(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const decoded = new WeakMap<EncodedArray, NDArray>();

/** Decode an array. The result is cached, because views read the same array often. */
export function decodeArray(array: EncodedArray): NDArray {
  const known = decoded.get(array);
  if (known) return known;
  const binary = atob(array.data);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) bytes[index] = binary.charCodeAt(index);
  const view = new DataView(bytes.buffer);
  const width = WIDTHS[array.dtype];
  const read = READERS[array.dtype];
  const size = array.shape.reduce((product, length) => product * length, 1);
  if (bytes.length !== size * width) {
    throw new Error(`An array of the shape ${array.shape.join(" × ")} has ${bytes.length} bytes instead of ${size * width}.`);
  }
  const data = new Float64Array(size);
  for (let index = 0; index < size; index++) data[index] = read(view, index * width);
  const result = { shape: array.shape, data };
  decoded.set(array, result);
  return result;
}

/** A matrix in C order. */
export class Matrix {
  constructor(
    readonly rows: number,
    readonly columns: number,
    readonly data: Float64Array = new Float64Array(rows * columns),
  ) {}

  at(row: number, column: number): number {
    return this.data[row * this.columns + column];
  }

  row(index: number): Float64Array {
    return this.data.subarray(index * this.columns, (index + 1) * this.columns);
  }

  map(change: (value: number, row: number, column: number) => number): Matrix {
    const result = new Matrix(this.rows, this.columns);
    for (let row = 0; row < this.rows; row++) {
      for (let column = 0; column < this.columns; column++) {
        result.data[row * this.columns + column] = change(this.at(row, column), row, column);
      }
    }
    return result;
  }

  multiply(other: Matrix): Matrix {
    const result = new Matrix(this.rows, other.columns);
    for (let row = 0; row < this.rows; row++) {
      const target = result.row(row);
      for (let inner = 0; inner < this.columns; inner++) {
        const factor = this.at(row, inner);
        if (factor === 0) continue;
        const source = other.row(inner);
        for (let column = 0; column < other.columns; column++) target[column] += factor * source[column];
      }
    }
    return result;
  }

  static identity(size: number): Matrix {
    return new Matrix(size, size).map((_, row, column) => (row === column ? 1 : 0));
  }
}

/** Return the matrices along the first axis: one for a matrix, several for an array of three axes. */
export function splitMatrices(array: NDArray): Matrix[] {
  const [rows, columns] = array.shape.slice(-2);
  const count = array.shape.length === 3 ? array.shape[0] : 1;
  return Array.from(
    { length: count },
    (_, index) => new Matrix(rows, columns, array.data.subarray(index * rows * columns, (index + 1) * rows * columns)),
  );
}
