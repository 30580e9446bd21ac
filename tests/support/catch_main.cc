// SPDX-License-Identifier: Apache-2.0
#define CATCH_CONFIG_MAIN  // Catch2 2's main; Catch2 3 has it in a library
#include "tests/support/catch.h"
