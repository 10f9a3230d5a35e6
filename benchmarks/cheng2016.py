"""Does self-attention help a recurrent network? After Cheng et al. (2016), Table 1, and Paulus et al. (2018).

    python benchmarks/cheng2016.py --data corpora --parallel 3
    python benchmarks/cheng2016.py --data corpora --parallel 3 --minutes 9   # continue later
    python benchmarks/cheng2016.py --report runs/cheng2016/results.json
    python benchmarks/cheng2016.py --data corpora --seeds 2 --set training.steps=20    # try it out

Trains LSTM encoder-decoders with additive attention on Multi30k English → German with three seeds: the standard LSTM;
the LSTMN, which attends to its previous states, in encoder and decoder, with shallow fusion and with deep fusion; and
the standard LSTM with a decoder that attends to its previous outputs (intra-attention). Prints both tables and plots
the contrasts. `classics.py` describes the tests. The papers report results on language modeling and summarization, not
on translation.
"""

from classics import Contrast, Experiment, main

LSTM = {"model.encoder.cell": "lstm", "model.decoder.cell": "lstm"}
LSTMN = {"model.encoder.cell": "lstmn", "model.decoder.cell": "lstmn"}
CHENG = "Table 1, language modeling: perplexity 115 → 108"
PAULUS = "Table 1, summarization: intra-attention helps on long documents"

EXPERIMENT = Experiment(
    "cheng2016",
    systems={
        "LSTM": LSTM,
        "LSTMN, shallow fusion": LSTMN,
        "LSTMN, deep fusion": {**LSTMN, "model.decoder.fusion": "deep"},
        "LSTM, intra-attention": {**LSTM, "model.decoder.intra_attention": "general"},
    },
    contrasts=[
        Contrast("LSTM", "LSTMN, shallow fusion", "lower", CHENG, "perplexity"),
        Contrast("LSTM", "LSTMN, shallow fusion", "higher", CHENG),
        Contrast("LSTM", "LSTMN, deep fusion", "higher", CHENG),
        Contrast("LSTM", "LSTM, intra-attention", "higher", PAULUS),
    ],
)

if __name__ == "__main__":
    main(EXPERIMENT, __file__, __doc__)
