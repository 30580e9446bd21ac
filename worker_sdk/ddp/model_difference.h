// SPDX-License-Identifier: Apache-2.0
// The check before training: do two ranks have the same model?
// Pure: no I/O, clock or thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// One parameter or buffer of a model.
struct ModelEntry {
  std::string name;         // "parameter fc1.weight"
  std::string description;  // "Float [128, 9216]": whatever must agree
};

// As one text, to send: a line "NAME\tDESCRIPTION\n" for each, in the list's order. Names and
// descriptions hold no newline and no tab.
std::string encode_model(const std::vector<ModelEntry>& entries);

// The first difference, by place in the list, in a sentence that names `rank`, the entry and both
// sides ("rank 1: parameter fc1.weight is Float [64], on rank 0 it is Float [128]"); empty where
// the models are the same. Both texts are encode_model()'s: `mine` is rank `rank`'s. Throws nothing
// but std::bad_alloc.
std::string first_model_difference(int rank, std::string_view mine, std::string_view rank_zeros);

}  // namespace ddprun
