"""Statistics of an audit: numpy and scipy alone, usable without torch.

One file a question: ``intervals`` and ``thresholds`` (operating points), ``roc`` and ``stability`` (attack
curves), ``randomization`` (detection by the coins), ``one_run`` (lower bounds on epsilon), ``two_proportion``,
``exposure``, ``set_tests``, ``multiple`` and ``power``. docs/statistics.md says what each may claim.
"""
