// SPDX-License-Identifier: Apache-2.0
#include "common/suggest.h"

#include <algorithm>
#include <numeric>

#include "common/text.h"

namespace ddprun {
namespace {

std::string normalised(std::string_view word) {
  std::string text(word.substr(std::min(word.find_first_not_of('-'), word.size())));
  for (char& letter : text) {
    letter = letter == '_' ? '-' : ascii_lower(letter);
  }
  return text;
}

// Returns the number of edits that turn one word into the other: insert, drop or change a letter.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_to(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > kMostCompared) return "";
  const std::string wanted = normalised(word);
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::string name = normalised(candidate);
    std::size_t distance = edit_distance(wanted, name);
    const bool one_begins_the_other =
        wanted.size() >= 3 && (name.starts_with(wanted) || wanted.starts_with(name));
    if (one_begins_the_other) distance = std::min<std::size_t>(distance, 1);
    if (!best || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  const std::size_t limit = std::max<std::size_t>(1, wanted.size() / 3);
  if (!best || best_distance > limit) return "";
  return *best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_to(word, candidates);
  return nearest.empty() ? "" : " (did you mean " + nearest + "?)";
}

std::string shown_word(std::string_view word) {
  constexpr std::size_t kMost = 80;
  return one_line(word.substr(0, kMost)) + (word.size() > kMost ? "…" : "");
}

}  // namespace ddprun
