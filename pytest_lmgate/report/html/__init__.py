"""The page of ``--lmgate-report html:FILE``, with its templates."""
