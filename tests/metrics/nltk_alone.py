"""rouge_score, and the stemmer of nltk that it uses, without the rest of nltk.

To import nltk is to import all of it, and SciPy and scikit-learn beside it: 1 s in each process that collects a test.
"""

import importlib
import importlib.util
import sys
from types import ModuleType


def _with_bare_packages(*names: str) -> dict[str, ModuleType]:
    """Import modules of nltk and what needs them, while nltk and its folder are packages without code."""
    known = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "nltk"}
    spec = importlib.util.find_spec("nltk")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for name in known:
        del sys.modules[name]
    try:
        for package, folder in (("nltk", ""), ("nltk.stem", "/stem")):
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [f"{each}{folder}" for each in spec.submodule_search_locations]
        return {name: importlib.import_module(name) for name in names}
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "nltk"]:
            del sys.modules[name]
        sys.modules.update(known)


_modules = _with_bare_packages("nltk.stem.porter", "rouge_score.rouge_scorer")
PorterStemmer = _modules["nltk.stem.porter"].PorterStemmer
RougeScorer = _modules["rouge_score.rouge_scorer"].RougeScorer
