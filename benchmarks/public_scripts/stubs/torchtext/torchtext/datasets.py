"""Only named by the scripts."""


class TranslationDataset:
    pass
