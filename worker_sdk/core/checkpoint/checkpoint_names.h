// SPDX-License-Identifier: Apache-2.0
// Every name in a checkpoint directory. Pure: no I/O, clock or thread.
//
//   step-000000000120.safetensors                       the checkpoint of step 120; where it has
//                                                       shards: what belongs to all of them
//   step-000000000120.3f9a1c22.rank-2-of-4.safetensors  the shard that rank 2 of 4 wrote, of save
//                                                       3f9a1c22
//   NAME.tmp-…                                          not whole yet, or never
//   NAME.damaged                                        put aside
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// What a writer adds to the name of a file that isn't whole yet; what follows tells writers apart.
inline constexpr std::string_view kTemporaryMark = ".tmp-";
inline constexpr std::string_view kDamagedMark = ".damaged";

struct ShardPlace {
  std::uint64_t step = 0;
  std::string save;  // 8 hexadecimal digits in small letters, drawn for each save
  int rank = 0;
  int size = 1;

  bool operator==(const ShardPlace&) const = default;
};

std::string checkpoint_name(std::uint64_t step);
std::string shard_name(const ShardPlace& place);

// nullopt: any other name.
std::optional<std::uint64_t> parse_checkpoint_name(std::string_view name);
std::optional<ShardPlace> parse_shard_name(std::string_view name);

// Of a checkpoint or a shard.
bool is_temporary_name(std::string_view name);

}  // namespace ddprun
