// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/place.h"

#include <charconv>

#include "common/env_names.h"
#include "common/error.h"

namespace ddprun::doctor {
namespace {

int place_number(const Environment& environment, const char* name, int least) {
  const std::string text = find_variable(environment, name).value_or("");
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value >= least) return value;
  throw Error(ErrorCode::kInvalidArgument, std::string(name) + "=" + text +
                                               ": as ddprun sets it for its workers it is a "
                                               "number of " +
                                               std::to_string(least) + " or more");
}

}  // namespace

std::optional<Place> find_place(const Environment& environment) {
  const auto address = find_variable(environment, env::kNodeAddr);
  const auto host = find_variable(environment, env::kMasterAddr);
  if (!address || !host || !find_variable(environment, env::kRank)) return std::nullopt;
  Place place;
  const bool is_virtual = find_variable(environment, env::kTrueLocalRank).has_value();
  place.local_rank =
      place_number(environment, is_virtual ? env::kTrueLocalRank : env::kLocalRank, 0);
  place.global_rank = place_number(environment, env::kRank, 0);
  place.node_rank = place_number(environment, env::kGroupRank, 0);
  place.num_nodes = place_number(environment, env::kGroupWorldSize, 1);
  place.world_size = place_number(environment, env::kWorldSize, 1);
  const int port = place_number(environment, env::kMasterPort, 1);
  place.store = {*host, static_cast<std::uint16_t>(port)};
  place.address = *address;
  place.round = find_variable(environment, env::kRound).value_or("1");
  return place;
}

}  // namespace ddprun::doctor
