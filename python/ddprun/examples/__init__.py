# SPDX-License-Identifier: Apache-2.0
"""Programs for a first try: python -m ddprun.examples.digits"""
