// SPDX-License-Identifier: Apache-2.0
// Stacks as people see them. A rendezvous, and the agents behind it, may say anything.
#include "ctl/stack/folded_stacks.h"

#include "common/error.h"
#include "common/text.h"
#include "rendezvous/messages/stacks_target.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::ctl {
namespace {

using ddprun::test::Contains;

std::string rank(int number, const std::string& lines, const std::string& note = "") {
  return concat(R"({"rank":)", number, R"(,"host":"gpu)", number / 2, R"(","lines":[)", lines,
                R"(],"note":")", note, R"("})");
}

std::string page(const std::vector<std::string>& ranks) {
  return concat(R"({"run_id":"job","num_ranks":9,"ranks":[)", listed(ranks, ","), "]}");
}

constexpr char kWaits[] =
    R"x("state in futex()","python all_reduce (dist.py:3)","native futex_wait (libc.so.6)")x";
constexpr char kWaitsElsewhere[] =
    R"x("state running","python all_reduce (dist.py:3)","native ncclPoll (libnccl.so.2)")x";
constexpr char kLoads[] = R"x("state in read() of /data/7","python loads_data (train.py:12)")x";

TEST_CASE("fold_stacks: ranks at the same place are one entry, most ranks first") {
  const FoldedStacks folded = fold_stacks(
      page({rank(0, kLoads), rank(1, kWaits), rank(2, kWaitsElsewhere), rank(3, kWaits)}), false);
  CHECK(folded.text ==
        "ranks 1–3 (gpu[0-1]): 2 in futex(), 1 running in ncclPoll (libnccl.so.2)\n"
        "    all_reduce (dist.py:3)\n"
        "rank 0 (gpu0): in read() of /data/7\n"
        "    loads_data (train.py:12)\n");
  CHECK(folded.num_ranks == 4);
  CHECK(folded.num_missing == 0);
}

TEST_CASE("fold_stacks: ranks that differ in native frames are two entries if these are shown") {
  const FoldedStacks folded = fold_stacks(page({rank(0, kWaits), rank(1, kWaitsElsewhere)}), true);
  CHECK(folded.text ==
        "rank 0 (gpu0): in futex()\n"
        "    all_reduce (dist.py:3)\n    native:\n    futex_wait (libc.so.6)\n"
        "rank 1 (gpu0): running in ncclPoll (libnccl.so.2)\n"
        "    all_reduce (dist.py:3)\n    native:\n    ncclPoll (libnccl.so.2)\n");
}

TEST_CASE("fold_stacks: native frames are shown in place of missing Python frames") {
  const FoldedStacks folded = fold_stacks(
      page({rank(0, R"x("state in read()","native read","native main")x", "no py-spy")}), false);
  CHECK(folded.text == "rank 0 (gpu0): in read()\n    read\n    main\n    (no py-spy)\n");
}

TEST_CASE("fold_stacks: ranks without a stack come last, with the reason, and are counted") {
  const FoldedStacks folded =
      fold_stacks(page({rank(0, "", "it has ended"), rank(1, kLoads),
                        rank(2, R"("state stopped")", "no stack: its time was over"),
                        rank(3, "", "it has ended")}),
                  false);
  CHECK(folded.text ==
        "rank 1 (gpu0): in read() of /data/7\n    loads_data (train.py:12)\n"
        "ranks 0, 3 (gpu[0-1]): no stack: it has ended\n"
        "rank 2 (gpu1): no stack: its time was over; stopped\n");
  CHECK(folded.num_missing == 3);
}

TEST_CASE("fold_stacks: words of agents stay on their lines") {
  const FoldedStacks folded =
      fold_stacks(page({rank(0, R"("python a\nb\u001b[2J","nonsense")", R"(c\nd)")}), false);
  CHECK(folded.text == "rank 0 (gpu0): \n    a\\nb\\x1b[2J\n    (c\\nd)\n");
}

TEST_CASE("fold_stacks: a problem is told as it is, what is no such page is one clear error") {
  CHECK_THROWS_WITH(fold_stacks(R"({"problem":"no job \"x\" runs here"})", false),
                    "no job \"x\" runs here");
  CHECK(test::code_of([] { fold_stacks(R"({"problem":"none"})", false); }) ==
        ErrorCode::kInvalidArgument);
  for (const char* text : {"", "[]", "{}", "nonsense", R"({"ranks":7})", R"({"ranks":[{}]})"}) {
    CAPTURE(text);
    CHECK(test::code_of([&] { fold_stacks(text, false); }) == ErrorCode::kProtocol);
  }
}

TEST_CASE("fold_stacks: a page of more ranks than a question may be about is refused") {
  std::vector<std::string> ranks(membership::kMostStacks, rank(0, kLoads));
  CHECK(fold_stacks(page(ranks), false).num_ranks == ranks.size());
  ranks.push_back(rank(0, kLoads));
  CHECK(test::code_of([&] { fold_stacks(page(ranks), false); }) == ErrorCode::kProtocol);
}

}  // namespace
}  // namespace ddprun::ctl
