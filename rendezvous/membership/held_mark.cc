// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/membership/held_mark.h"

#include "rendezvous/membership/row_fields.h"

namespace ddprun::membership {

template <typename Mark, typename Fields>
static void each_field(Mark& mark, Fields& fields) {
  fields("bases", mark.bases);
  fields("is_incumbent", mark.is_incumbent);
  fields("voters", mark.voters);
  fields("clock_shift", mark.clock_shift);
  fields("boot", mark.boot);
}

std::string held_row(const HeldMark& mark) {
  RowWriter writer;
  each_field(mark, writer);
  return writer.text();
}

std::optional<HeldMark> read_held_mark(const journal::Rows& rows_of_job) {
  const auto row = rows_of_job.find(kHeldRow);
  if (row == rows_of_job.end()) return std::nullopt;
  HeldMark mark;
  RowReader reader(row->second, {});
  each_field(mark, reader);
  if (mark.bases.empty() || mark.voters.empty()) {
    throw Error(ErrorCode::kProtocol, concat("its row \"", kHeldRow, "\" makes no sense"));
  }
  return mark;
}

}  // namespace ddprun::membership
