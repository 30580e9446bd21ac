// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/ddp_rules.h"

#include "tests/support/catch.h"

using namespace ddprun;

namespace {
const std::string kTwoLayers =
    encode_model({{"parameter a", "Float [2]"}, {"parameter b", "Float [3]"}});
std::string difference(const std::vector<ModelEntry>& mine) {
  return first_model_difference(3, encode_model(mine), kTwoLayers);
}
}  // namespace

TEST_CASE("model check: equal models have no difference") {
  CHECK(first_model_difference(1, kTwoLayers, kTwoLayers).empty());
  CHECK(first_model_difference(1, "", "").empty());
}

TEST_CASE("model check: another shape names rank, parameter and both shapes") {
  CHECK(difference({{"parameter a", "Float [2]"}, {"parameter b", "Float [4]"}}) ==
        "rank 3: parameter b is Float [4], on rank 0 it is Float [3]");
}

TEST_CASE("model check: a missing, an additional and a renamed parameter are named") {
  CHECK(difference({{"parameter a", "Float [2]"}}) == "rank 3 lacks parameter b, which rank 0 has");
  CHECK(difference({{"parameter a", "Float [2]"},
                    {"parameter b", "Float [3]"},
                    {"buffer c", "Long []"}}) == "rank 3 has buffer c, which rank 0 has not");
  CHECK(difference({{"parameter a", "Float [2]"}, {"parameter x", "Float [3]"}}) ==
        "rank 3 has parameter x where rank 0 has parameter b");
}
