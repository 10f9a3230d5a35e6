#!/bin/sh
# Print what to try after `make demo`. The first argument is the run that it trained.
run=${1:-runs/demo}
cat <<TEXT

The model is trained, tested and stored in $run. What to try next:

  Activate the environment     . .venv/bin/activate
  Normalize other dates        regard predict $run "le 14 juillet 1989" "14. Juli 1989"
  Save a figure                regard look $run "14. Juli 1989" -o alignment.svg
  List attention mechanisms    regard mechanisms
  Train with another one       regard train dates model.attention=entmax15 --out runs/entmax15
  Train a Transformer          regard train dates-transformer
  Train on your own pairs      regard train --pairs FILE.tsv
  Explore it in the browser    regard explore $run
TEXT
