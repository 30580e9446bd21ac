// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/mesh.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "common/parsed_number.h"
#include "common/text.h"
#include "common/throw_error.h"

namespace ddprun {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw_invalid("layout '", text, "': ", why);
}

// Parses "tp2".
MeshAxis parse_axis(std::string_view text, std::string_view part) {
  const auto digits = std::ranges::find_if_not(part, is_letter);
  const std::string name(part.begin(), digits);
  const auto size = parsed_number<int>({digits, part.end()});
  if (name.empty() || !size || *size < 1) {
    refuse(text, concat("'", part, "' is not an axis and its number of ranks, as in tp2"));
  }
  return {name, *size};
}

}  // namespace

MeshLayout::MeshLayout(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  if (axes_.empty()) throw_invalid("a mesh needs an axis");
  for (auto axis = axes_.begin(); axis != axes_.end(); ++axis) {
    const auto same_name = [&](const MeshAxis& other) { return other.name == axis->name; };
    if (axis->name.empty() || !std::ranges::all_of(axis->name, is_letter)) {
      throw_invalid("'", axis->name, "' can't name an axis of a mesh: letters only");
    }
    if (std::any_of(axes_.begin(), axis, same_name)) {
      throw_invalid("axis ", axis->name, " is there twice");
    }
    if (axis->size < 1 || axis->size > std::numeric_limits<int>::max() / size_) {
      throw_invalid("axis ", axis->name, " can't have ", axis->size, " ranks");
    }
    size_ *= axis->size;
  }
}

MeshLayout MeshLayout::parse(std::string_view text, const std::vector<std::string>& names) {
  std::vector<MeshAxis> axes;
  for (const std::string& name : names) axes.push_back({name, 1});
  std::vector<std::string> seen;
  for (const std::string_view part : parts_between(text, 'x')) {
    const MeshAxis axis = parse_axis(text, part);
    const auto place = std::ranges::find(names, axis.name);
    if (place == names.end()) {
      refuse(text, concat("no axis ", axis.name, "; there are ", listed(names)));
    }
    if (std::ranges::find(seen, axis.name) != seen.end()) {
      refuse(text, concat("axis ", axis.name, " is there twice"));
    }
    seen.push_back(axis.name);
    axes[static_cast<std::size_t>(place - names.begin())].size = axis.size;
  }
  return MeshLayout(std::move(axes));
}

std::size_t MeshLayout::index_of(std::string_view axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return i;
  }
  throw_invalid("no axis ", axis, " in ", text());
}

int MeshLayout::stride_of(std::size_t index) const {
  int stride = 1;
  for (std::size_t i = index + 1; i < axes_.size(); ++i) stride *= axes_[i].size;
  return stride;
}

void MeshLayout::check_rank(int rank) const {
  if (rank >= 0 && rank < size_) return;
  throw_invalid("no rank ", rank, " in ", text());
}

int MeshLayout::coordinate(int rank, std::string_view axis) const {
  check_rank(rank);
  const std::size_t index = index_of(axis);
  return rank / stride_of(index) % axes_[index].size;
}

std::vector<int> MeshLayout::group_of(int rank, const std::vector<std::string>& axes) const {
  check_rank(rank);
  std::vector<bool> is_free(axes_.size(), false);
  for (const std::string& axis : axes) is_free[index_of(axis)] = true;
  std::vector<int> group{0};
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const int stride = stride_of(i);
    const int own = rank / stride % axes_[i].size;
    std::vector<int> longer;
    for (const int begun : group) {
      for (int at = is_free[i] ? 0 : own; at <= (is_free[i] ? axes_[i].size - 1 : own); ++at) {
        longer.push_back(begun + at * stride);
      }
    }
    group = std::move(longer);
  }
  return group;
}

std::string MeshLayout::text() const {
  std::string text;
  for (const MeshAxis& axis : axes_) {
    if (axis.size > 1) text += concat(text.empty() ? "" : "x", axis.name, axis.size);
  }
  return text.empty() ? concat(axes_.back().name, axes_.back().size) : text;
}

Mesh::Mesh(Communicator& world, MeshLayout layout) : world_(world), layout_(std::move(layout)) {
  if (layout_.size() == world_.size()) return;
  throw_invalid("a mesh of ", layout_.text(), " is ", layout_.size(), " ranks, there are ",
                world_.size());
}

Communicator& Mesh::along_axes(const std::vector<std::string>& axes) {
  const std::vector<int> ranks = layout_.group_of(world_.rank(), axes);
  if (static_cast<int>(ranks.size()) == world_.size()) return world_;
  std::vector<std::string> names = axes;  // sorted: any order gives the same group
  std::ranges::sort(names);
  const std::string name = listed(names, "+");
  std::unique_ptr<Communicator>& group = groups_[name];
  if (!group) group = world_.split(ranks, {.name = name});
  return *group;
}

}  // namespace ddprun
