"""``python -m stepwell.adapters.simulators.install``; the packages above have imported the module itself already."""

from stepwell.adapters.simulators.install import main

main()
