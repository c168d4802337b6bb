"""Generated against true showers, as the CaloChallenge compares them.

Read the files in this order:

    config.py       how much work a comparison does
    comparison.py   the comparison of two sources: arrays in, figures of merit out
    inputs.py       inputs of classifiers and distances
    classifier.py   the classifier and its AUC
    distances.py    Frechet and kernel distance
    report.py       metrics and pictures of a comparison, for reports (profiles.py, layer_histograms.py, figures.py)
"""
