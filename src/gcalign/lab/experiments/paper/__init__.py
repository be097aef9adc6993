"""The tables and figures of the paper, and what it claims about them."""

from gcalign.lab.experiments.engine.claims import Family

# the sections of claims; some have claims of several tables
ACCURACY = Family("Accuracy", 1)
VIEWS = Family("Noisy views", 2)
QUALITY = Family("Alignment and uniformity", 3)
TARGET = Family("Target plans", 4)
PLANS = Family("Plans", 5)
ITERATIONS = Family("Iterations and hyper-parameters", 6)
COST = Family("Cost", 7)
PRINTED = Family("The paper against its own tables", 90, "printed")
