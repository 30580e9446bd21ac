// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/ddp/model_difference.h"

#include <optional>

#include "common/log.h"

namespace ddprun {
namespace {

struct Line {
  std::string_view name;
  std::string_view description;
};

// Takes the first line off `text`; nullopt at the end.
std::optional<Line> take_line(std::string_view& text) {
  if (text.empty()) return std::nullopt;
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(line.size() + 1);
  const std::size_t tab = line.find('\t');
  return Line{.name = line.substr(0, tab), .description = line.substr(tab + 1)};
}

}  // namespace

std::string encode_model(const std::vector<ModelEntry>& entries) {
  std::string text;
  for (const ModelEntry& entry : entries) text += entry.name + '\t' + entry.description + '\n';
  return text;
}

std::string first_model_difference(int rank, std::string_view mine, std::string_view rank_zeros) {
  for (;;) {
    const std::optional<Line> my_line = take_line(mine);
    const std::optional<Line> other = take_line(rank_zeros);
    if (!my_line && !other) return "";
    if (!other) return concat("rank ", rank, " has ", my_line->name, ", which rank 0 has not");
    if (!my_line) return concat("rank ", rank, " lacks ", other->name, ", which rank 0 has");
    if (my_line->name != other->name) {
      return concat("rank ", rank, " has ", my_line->name, " where rank 0 has ", other->name);
    }
    if (my_line->description != other->description) {
      return concat("rank ", rank, ": ", my_line->name, " is ", my_line->description,
                    ", on rank 0 it is ", other->description);
    }
  }
}

}  // namespace ddprun
