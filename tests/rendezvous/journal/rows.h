// SPDX-License-Identifier: Apache-2.0
// A journal that is a map: what a test keeps in place of a file.
#pragma once

#include "rendezvous/journal/row.h"

namespace ddprun::journal::testing {

// Makes of `rows` what a journal with them has once `batch` is kept.
inline void apply_batch(const Batch& batch, Rows& rows) {
  for (const RowChange& change : batch) {
    if (change.content) {
      rows[change.key] = *change.content;
    } else {
      rows.erase(change.key);
    }
  }
}

}  // namespace ddprun::journal::testing
