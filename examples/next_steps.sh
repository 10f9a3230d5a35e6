#!/bin/sh
# What to try after `make demo`; the first argument is the run it trained.
run=${1:-runs/demo}
cat <<TEXT

Trained, tested and looked at. The model lies in $run. What to try next:

  . .venv/bin/activate                                            so that \`regard\` is found
  regard predict $run "le 14 juillet 1989" "14. Juli 1989"     ask it something
  regard look $run "14. Juli 1989" -o alignment.svg            a figure for a paper
  regard train dates model.attention=entmax15 --out runs/entmax15 
  regard mechanisms                                               what else there is
  regard train --pairs FILE.tsv                                   your own pairs, nothing to set
TEXT
