"""Step rules: what an attempt's steps are looked at for while they are folded.

`signals` says what a rule can look at, `kernels` what each kind of rule looks for, `memory` what is remembered between
two steps, `program` compiles a rule set's text, `judge` runs it on an attempt, `in_force` tells which set judges whom.
"""
