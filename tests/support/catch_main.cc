// SPDX-License-Identifier: Apache-2.0
#define CATCH_CONFIG_MAIN  // Catch2 2's main; that of 3 is in a library of its own
#include "tests/support/catch.h"
