// SPDX-License-Identifier: Apache-2.0
// The optimisers under test (optimizers_test.py):
//   optim_worker rules    one case per input line, see run_…case()
//   optim_worker checks   properties of one process; exit status 0 where they hold
//   optim_worker ddp      one of some ranks; the same
#include <torch/torch.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "common/error.h"
#include "common/text.h"
#include "tests/worker_sdk/torch/counted_calls.h"
#include "tests/worker_sdk/torch/twin_optimizers.h"
#include "tests/worker_sdk/torch/worker_program.h"
#include "worker_sdk/torch/autocast.h"
#include "worker_sdk/torch/distributed_data_parallel.h"
#include "worker_sdk/torch/flat_optimizer.h"
#include "worker_sdk/torch/grad_scaler.h"
#include "worker_sdk/torch/gradient_clipping.h"

using namespace ddprun;
using namespace ddprun::testing;

namespace optim_worker {
namespace {

template <typename Call>
void expect_error(Call call, const std::string& part) {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    return expect(text.find(part) != std::string::npos, text + " contains " + part);
  }
  expect(false, "an error that contains " + part);
}

// E.g. "lr=0.1,nesterov=1". "1.lr" belongs to the second group.
using Settings = std::map<std::string, double>;

Settings parse_settings(const std::string& text) {
  Settings settings;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const std::size_t equals = item.find('=');
    settings[item.substr(0, equals)] = std::stod(item.substr(equals + 1));
  }
  return settings;
}

UpdateRule make_rule(const std::string& name, const Settings& settings, std::size_t group) {
  const auto set = [&](const char* key, auto& value) {
    for (const std::string& prefix : {std::string(), std::to_string(group) + "."}) {
      const auto found = settings.find(prefix + key);
      if (found == settings.end()) continue;
      value = static_cast<std::remove_reference_t<decltype(value)>>(found->second);
    }
  };
  if (name == "sgd") {
    SgdRule rule;
    set("lr", rule.lr);
    set("momentum", rule.momentum);
    set("dampening", rule.dampening);
    set("weight_decay", rule.weight_decay);
    set("nesterov", rule.nesterov);
    set("maximize", rule.maximize);
    return rule;
  }
  const auto adam = [&](auto rule) -> UpdateRule {
    set("lr", rule.lr);
    set("beta1", rule.beta1);
    set("beta2", rule.beta2);
    set("eps", rule.eps);
    set("weight_decay", rule.weight_decay);
    set("amsgrad", rule.amsgrad);
    set("maximize", rule.maximize);
    return rule;
  };
  return name == "adam" ? adam(AdamRule()) : adam(AdamWRule());
}

std::vector<std::int64_t> parse_shape(const std::string& text) {
  std::vector<std::int64_t> shape;
  std::istringstream in(text);
  for (std::string size; std::getline(in, size, 'x');) shape.push_back(std::stol(size));
  return shape;
}

torch::Tensor read_values(std::istream& in, at::IntArrayRef shape) {
  torch::Tensor values = torch::empty(shape, torch::kDouble);
  in.read(static_cast<char*>(values.mutable_data_ptr()),
          static_cast<std::streamsize>(values.nbytes()));
  expect(bool(in), "the input has all values");
  return values;
}

void write_values(std::ostream& out, const torch::Tensor& tensor) {
  const torch::Tensor values = tensor.detach().to(torch::kDouble).contiguous();
  out.write(static_cast<const char*>(values.const_data_ptr()),
            static_cast<std::streamsize>(values.nbytes()));
}

// Parameters of one dimension are in the second group.
std::unique_ptr<FlatOptimizer> make_optimizer(const std::vector<NamedTensor>& parameters,
                                              const std::string& rule, const Settings& settings) {
  std::vector<ParameterGroup> groups(2);
  for (const NamedTensor& each : parameters) {
    groups[each.tensor.dim() == 1].parameters.push_back(each);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) groups[g].rule = make_rule(rule, settings, g);
  return std::make_unique<FlatOptimizer>(std::move(groups));
}

// A case is DTYPE ("mixed": float64 and float32 in turn) RULE SETTINGS SHAPES STEPS IN OUT. IN has
// the initial values, then for each step and parameter a 1 and its gradient, or a 0. Half way the
// state goes to a new optimiser. OUT gets the parameters, the state and the last norm. The names of
// the state are printed.
void run_case(const std::string& line) {
  std::istringstream in(line);
  std::string dtype, rule, settings_text, shapes_text, in_path, out_path;
  int num_steps = 0;
  in >> dtype >> rule >> settings_text >> shapes_text >> num_steps >> in_path >> out_path;
  const Settings settings = parse_settings(settings_text);
  std::ifstream input(in_path, std::ios::binary);
  std::vector<NamedTensor> parameters;
  std::istringstream shapes(shapes_text);
  for (std::string text; std::getline(shapes, text, ',');) {
    const bool is_double = dtype == "float64" || (dtype == "mixed" && parameters.size() % 2 == 0);
    torch::Tensor values =
        read_values(input, parse_shape(text)).to(is_double ? torch::kDouble : torch::kFloat);
    if (values.dim() == 4) values = values.contiguous(torch::MemoryFormat::ChannelsLast);
    values = values.clone().requires_grad_(true);
    parameters.push_back({concat("p", parameters.size()), values});
  }
  std::unique_ptr<FlatOptimizer> optimizer = make_optimizer(parameters, rule, settings);
  torch::Tensor norm = torch::zeros({});
  for (int step = 0; step < num_steps; ++step) {
    if (step == num_steps / 2) {
      auto next = make_optimizer({parameters.rbegin(), parameters.rend()}, rule, settings);
      for (const NamedState& saved : optimizer->state()) {
        for (const NamedState& place : next->state()) {
          if (place.parameter == saved.parameter && place.name == saved.name) {
            place.tensor.copy_(saved.tensor);
          }
        }
      }
      optimizer = std::move(next);
    }
    optimizer->zero_grad();
    for (NamedTensor& each : parameters) {
      if (read_values(input, {}).item<double>() == 0) continue;
      each.tensor.mutable_grad() = read_values(input, each.tensor.sizes()).to(each.tensor.dtype());
    }
    if (settings.contains("clip")) {
      norm = clip_gradient_norm(optimizer->gradients(), {.max_norm = settings.at("clip"),
                                                         .norm_type = settings.at("norm_type")});
    }
    optimizer->step();
  }
  std::ofstream out(out_path, std::ios::binary);
  for (const NamedTensor& each : parameters) write_values(out, each.tensor);
  for (const NamedState& each : optimizer->state()) {
    write_values(out, each.tensor);
    std::cout << each.parameter << '.' << each.name << ' ';
  }
  write_values(out, norm);
  expect(bool(out.flush()), "the results are written");
  std::cout << std::endl;
}

// "scaler INTERVAL PATTERN" does a step for each letter of PATTERN. "." is a normal gradient; an
// "i" makes it inf, an "n" nan. Prints the scale, the growth tracker and the parameters after each
// step. Half way the state goes to a new scaler.
void run_scaler_case(const std::string& line) {
  std::istringstream in(line);
  std::string word, pattern;
  std::int64_t interval = 0;
  in >> word >> interval >> pattern;
  const GradScalerOptions options{.growth_interval = interval};
  auto scaler = std::make_unique<GradScaler>(c10::kCPU, nullptr, options);
  const torch::Tensor parameter = torch::ones({3}).requires_grad_(true);
  FlatOptimizer optimizer({{{{"p", parameter}}, SgdRule{.lr = 0.1, .momentum = 0.9}}});
  std::cout << std::setprecision(17);
  for (std::size_t step = 0; step < pattern.size(); ++step) {
    if (step == pattern.size() / 2) {
      auto next = std::make_unique<GradScaler>(c10::kCPU, nullptr, options);
      for (std::size_t i = 0; i < 2; ++i) {
        next->state()[i].second.copy_(scaler->state()[i].second);
      }
      scaler = std::move(next);
    }
    optimizer.zero_grad();
    const torch::Tensor x = torch::tensor({0.1F, -0.2F, 3e-6F}) * static_cast<float>(step + 1);
    scaler->scale((parameter * x).sum()).backward();
    if (pattern[step] != '.') {
      parameter.mutable_grad()[1] =
          pattern[step] == 'i' ? std::numeric_limits<float>::infinity() : std::nanf("");
    }
    if (scaler->unscale(optimizer.gradients())) optimizer.step();
    scaler->update();
    std::cout << scaler->current_scale() << ' ' << scaler->growth_tracker() << ' ';
    for (int i = 0; i < 3; ++i) std::cout << parameter[i].item<double>() << ' ';
  }
  std::cout << std::endl;
}

// "autocast DTYPE IN OUT": forward and backward of a small net on the CPU. The forward is in a
// guard. IN has parameters and input. OUT gets all intermediate results, then the parameters'
// gradients. Prints the results' dtypes.
void run_autocast_case(const std::string& line) {
  std::istringstream in(line);
  std::string word, dtype, in_path, out_path;
  in >> word >> dtype >> in_path >> out_path;
  std::ifstream input(in_path, std::ios::binary);
  std::vector<torch::Tensor> p;
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
           {4, 1, 3, 3}, {4}, {10, 64}, {10}, {10, 10}, {5, 1, 6, 6}}) {
    p.push_back(read_values(input, shape).to(torch::kFloat));
    if (p.size() < 6) p.back().requires_grad_(true);
  }
  std::vector<torch::Tensor> results;
  {
    const Autocast guard(c10::kCPU, dtype == "fp16" ? torch::kHalf : torch::kBFloat16);
    const auto keep = [&](const torch::Tensor& result) { return results.emplace_back(result); };
    const torch::Tensor h = keep(torch::relu(keep(torch::conv2d(p[5], p[0], p[1]))));
    torch::Tensor y = keep(torch::linear(h.flatten(1), p[2], p[3]));
    // The cast is done once and kept.
    y = keep(torch::matmul(keep(torch::tanh(torch::matmul(y, p[4]))), p[4]));
    {
      const Autocast off(c10::kCPU, torch::kHalf, false);
      y = keep(torch::matmul(y.to(torch::kFloat), p[4]));
    }
    const torch::Tensor narrow = keep(torch::linear(y, p[4]));
    // The result has the wider dtype.
    y = keep(torch::softmax(keep(torch::cat({y, narrow}, 1)), 1));
    keep(torch::mse_loss(y, torch::zeros_like(y)) + torch::log_softmax(y, 1).pow(2).mean());
  }
  results.back().backward();
  std::ofstream out(out_path, std::ios::binary);
  for (const torch::Tensor& each : results) {
    write_values(out, each);
    std::cout << c10::toString(each.scalar_type()) << ' ';
  }
  for (std::size_t i = 0; i < 5; ++i) write_values(out, p[i].grad());
  expect(bool(out.flush()), "the results are written");
  std::cout << std::endl;
}

torch::Tensor leaf(at::IntArrayRef shape) { return torch::ones(shape).requires_grad_(true); }

void run_checks() {
  const torch::Tensor a = leaf({3}), b = leaf({4}), c = leaf({5});
  const auto make = [](std::vector<ParameterGroup> groups) { FlatOptimizer{std::move(groups)}; };
  expect_error(
      [&] {
        make({{{{"a", a}}, {}}, {{{"a2", a}}, {}}});
      },
      "parameter a2 is in two groups");
  expect_error([&] { make({{{{"a", a}, {"a", b}}, {}}}); }, "two parameters of the optimiser");
  expect_error([&] { make({{{{"i", torch::ones({2}, torch::kLong)}}, {}}}); }, "parameter i");
  expect_error([&] { make({{{{"a", a}}, SgdRule{.lr = -1}}}); }, "lr is -1");
  expect_error([&] { make({{{{"a", a}}, SgdRule{.nesterov = true}}}); }, "nesterov");
  expect_error([&] { make({{{{"a", a}}, AdamRule{.beta2 = 1}}}); }, "beta");
  expect_error(
      [&] {
        make({{{{"a", a}}, AdamWRule{.weight_decay = std::nan("")}}});
      },
      "weight_decay is nan");

  FlatOptimizer optimizer(
      {{{{"a", a}, {"tied", a}, {"b", b}}, SgdRule{.lr = 0.5}}, {{{"c", c}}, AdamWRule{}}});
  a.mutable_grad() = torch::ones({3});
  const torch::Tensor product = (a * a).sum();
  optimizer.step();
  expect(a.equal(torch::full({3}, 0.5)), "a tied parameter is updated once");
  expect(b.equal(torch::ones({4})) && c.equal(torch::ones({5})), "no gradient, no update");
  for (const NamedState& state : optimizer.state()) {
    const double value = state.tensor.sum().item<double>();
    expect(value == (state.parameter == "a" ? 1 : 0), state.parameter + " has its own steps");
  }
  bool noticed = false;
  try {
    product.backward();
  } catch (const c10::Error& error) {
    noticed = std::string(error.what()).find("inplace") != std::string::npos;
  }
  expect(noticed, "autograd notices that a saved parameter was updated");

  optimizer.set_lr(1, 0.125);
  optimizer.set_lr(0, 0.25);
  optimizer.zero_grad();
  expect(!a.grad().defined(), "zero_grad forgets gradients");
  b.mutable_grad() = torch::ones({4});
  optimizer.step();
  expect(b.equal(torch::full({4}, 0.75)), "set_lr counts from the next step on");

  b.mutable_grad() = torch::ones({4}).requires_grad_() * 2;
  optimizer.step();
  expect(b.equal(torch::full({4}, 0.25)), "a gradient may have a graph of its own");
  b.mutable_grad() = torch::ones({4}, torch::kDouble);
  expect_error([&] { optimizer.step(); }, "the gradient of b is Double, the parameter Float");
  b.mutable_grad() = torch::ones({4}).to_sparse();
  expect_error([&] { optimizer.step(); }, "the gradient of b is sparse");
  b.mutable_grad().reset();
  torch::Tensor(b).set_data(torch::ones({4}));
  expect_error([&] { optimizer.step(); }, "parameter b was moved or replaced");

  torch::Tensor gradient = torch::tensor({3.0, std::numeric_limits<double>::infinity()});
  expect_error([&] { clip_gradient_norm({gradient}, {.error_if_nonfinite = true}); }, "is inf");
  expect(gradient[0].item<double>() == 3, "and nothing was changed");
  expect(clip_gradient_norm({}, {}).item<double>() == 0, "no gradients have no norm");
}

// The launches and waits of a step on a GPU. float64 takes a GPU's way.
void check_calls_of_a_step() {
  TwinOptimizers adam(AdamWRule{}, torch::kDouble);
  TwinOptimizers sgd(SgdRule{.momentum = 0.9}, torch::kDouble);
  GradScaler scaler(c10::kCPU, nullptr);
  for (int step = 0; step < 3; ++step) {
    adam.draw(true);  // in new memory each time
    sgd.draw(true);
    const CountedCalls calls;
    adam.unread->step();
    if (step > 0) {
      expect(calls.of("_fused_adamw_") == 1, "all parameters are one fused update");
      expect(calls.of("full") == 1, "parameters with the same step share a tensor of it");
    }
    expect(step < 2 || calls.of("narrow") + calls.of("slice") == 0, "arrays are the last step's");
    const int num_read = calls.of("_local_scalar_dense");  // Adam's step on the CPU reads some
    sgd.unread->step(scaler.unscale_async(sgd.unread->gradients()));
    scaler.update();
    expect(calls.of("_fused_sgd_") == 1, "SGD, too");
    expect(calls.of("_local_scalar_dense") == num_read, "nobody reads an overflow");
  }
  std::vector<at::Tensor> gradients = adam.unread->gradients();
  gradients.push_back(torch::ones({3}));  // has another dtype
  const CountedCalls calls;
  clip_gradient_norm(gradients, {.max_norm = 1e-3});
  expect(calls.of("_foreach_norm") == 1 && calls.of("_foreach_mul_") == 2,
         "a norm, and a scaling per dtype");
}

// A parameter gets its first gradient after the others have had updates.
void check_calls_after_a_late_parameter() {
  TwinOptimizers sgd(SgdRule{.momentum = 0.9}, torch::kDouble);
  for (int step = 0; step < 4; ++step) {
    sgd.draw(step > 0);
    const CountedCalls calls;
    sgd.unread->step();
    expect(calls.of("_fused_sgd_") == (step == 1 ? 2 : 1),
           "it has a fused update of its own in its first step only");
  }
}

// Clips bfloat16 beside float32. All gradients use the norm's scale, which is no bfloat16.
void check_clipping_of_two_dtypes() {
  const torch::Tensor wide = torch::ones({3}), numbers = torch::arange(1.0F, 33.0F);
  const torch::Tensor narrow = numbers.to(torch::kBFloat16);
  clip_gradient_norm({wide, narrow}, {.max_norm = 1});
  const torch::Tensor expected = numbers * wide[0];
  expect(narrow.equal(expected.to(torch::kBFloat16)), "rounded once, at the end");
}

void run_amp_checks() {
  const torch::Tensor a = torch::ones({2, 2});
  const auto product_type = [&] { return torch::mm(a, a).scalar_type(); };
  {
    const Autocast outer(c10::kCPU, torch::kBFloat16);
    expect(product_type() == torch::kBFloat16, "a product computes in the guard's dtype");
    expect(torch::mse_loss(a.to(torch::kBFloat16), a.to(torch::kBFloat16)).scalar_type() ==
               torch::kFloat,
           "a loss in float32");
    {
      const Autocast inner(c10::kCPU, torch::kHalf);
      expect(product_type() == torch::kHalf, "the inner guard counts");
      const Autocast off(c10::kCPU, torch::kHalf, false);
      expect(product_type() == torch::kFloat, "a guard can switch it off");
    }
    expect(product_type() == torch::kBFloat16, "the outer guard counts again");
  }
  expect(product_type() == torch::kFloat, "the thread is as it was");
  expect_error([] { Autocast(c10::kCPU, torch::kFloat); }, "autocast to Float");
  expect(product_type() == torch::kFloat, "a refused guard changes nothing");

  const auto make = [](const GradScalerOptions& options) {
    GradScaler(c10::kCPU, nullptr, options);
  };
  expect_error([&] { make({.init_scale = 0}); }, "init_scale is 0");
  expect_error([&] { make({.growth_factor = 1}); }, "growth_factor is 1");
  expect_error([&] { make({.backoff_factor = 1}); }, "backoff_factor is 1");
  expect_error([&] { make({.growth_interval = 0}); }, "growth_interval is 0");
  GradScaler scaler(c10::kCPU, nullptr);
  expect_error([&] { scaler.update(); }, "update() without unscale()");
  expect_error([&] { (void)scaler.unscale({torch::ones({2}, torch::kHalf)}); }, "is float16");
  torch::Tensor wide = torch::full({2}, 65536.0, torch::kDouble), bad = torch::ones({2});
  bad[0] = std::nanf("");
  expect(scaler.unscale({wide, torch::ones({2})}), "all finite, two dtypes");
  expect(wide[1].item<double>() == 1, "divided by the scale");
  expect(!scaler.unscale({bad}), "another optimiser's overflow");
  expect_error([&] { (void)scaler.unscale({wide}); },
               "unscale() was called for these gradients already");
  expect(wide[1].item<double>() == 1, "it was divided once");
  scaler.update();
  expect(scaler.unscale({wide}), "a new step");
  scaler.update();
  expect(scaler.current_scale() == 32768, "one overflow of two shrinks the scale");
  scaler.scale(torch::ones({}));
  expect(scaler.unscale({}), "no gradients, no overflow");
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(20, 20));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers = register_module("layers", torch::nn::ModuleList());
};
TORCH_MODULE(Net);

// Compares bit for bit.
void expect_equal_on_all_ranks(Communicator& communicator, const std::vector<at::Tensor>& tensors) {
  for (const torch::Tensor& each : tensors) {
    torch::Tensor low = each.detach().clone(), high = low.clone();
    for (auto& [tensor, op] : {std::pair(low, ReduceOp::kMin), std::pair(high, ReduceOp::kMax)}) {
      communicator.all_reduce(
          {.data = tensor.mutable_data_ptr(), .count = static_cast<std::size_t>(tensor.numel())},
          op);
    }
    expect(low.equal(high), "the ranks' parameters are equal");
  }
}

// The optimiser has the same result over DDP's buckets, through their rebuild, as without them.
void check_with_ddp(Communicator& communicator, const UpdateRule& rule, bool by_kind) {
  Net net, twin;
  DistributedDataParallel ddp(*net, communicator,
                              {.buckets = {.first_bytes = 1024, .cap_bytes = 4096}});
  {
    const torch::NoGradGuard no_grad;
    const std::vector<torch::Tensor> source = net->parameters();
    for (std::size_t i = 0; i < source.size(); ++i) twin->parameters()[i].copy_(source[i]);
  }
  const auto groups_of = [&](const Net& each) {
    std::vector<ParameterGroup> groups(2, {{}, rule});
    std::visit([](auto& second) { second.weight_decay = 0; }, groups[1].rule);
    for (NamedTensor& parameter : trainable_parameters(*each)) {
      groups[by_kind && parameter.tensor.dim() == 1].parameters.push_back(parameter);
    }
    return groups;
  };
  FlatOptimizer ours(groups_of(net), &ddp), theirs(groups_of(twin));
  const std::vector<torch::Tensor> mine = net->parameters(), others = twin->parameters();
  for (int step = 0; step < 6; ++step) {
    ddp.zero_grad();
    ddp(torch::randn({4, 20})).square().sum().backward();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      others[i].mutable_grad() = mine[i].grad().clone();
    }
    const torch::Tensor norm = clip_gradient_norm(ours.gradients(), {.max_norm = 0.5});
    const torch::Tensor expected = clip_gradient_norm(theirs.gradients(), {.max_norm = 0.5});
    expect(norm.equal(expected), "the norm doesn't depend on the buckets");
    for (std::size_t i = 0; i < mine.size(); ++i) {
      expect(torch::allclose(mine[i].grad(), others[i].grad()), "clipped alike");
      others[i].mutable_grad().copy_(mine[i].grad());
    }
    ours.step();
    theirs.step();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      expect(torch::allclose(mine[i], others[i], 1e-6, 1e-7), concat("equal after step ", step));
    }
    const std::size_t num_buckets = ddp.bucket_plan().size();
    expect(step == 0 ? num_buckets == 1 : num_buckets > 2, "the buckets were formed anew");
    if (!by_kind) expect(ours.num_runs() == num_buckets, "a bucket is one update");
  }
  const std::vector<NamedState> a = ours.state(), b = theirs.state();
  expect(a.size() == b.size() && !a.empty(), "the same state");
  for (std::size_t i = 0; i < a.size(); ++i) {
    expect(a[i].parameter == b[i].parameter && a[i].name == b[i].name, "in the same order");
    expect(torch::allclose(a[i].tensor, b[i].tensor, 1e-5, 1e-7), "and equal");
  }
  expect_equal_on_all_ranks(communicator, mine);
}

// The overflow is in a gradient that nobody averages, on the last rank only.
void check_overflow_on_one_rank(Communicator& communicator) {
  GradScaler scaler(c10::kCPU, &communicator);
  const torch::Tensor parameter = torch::ones({3}).requires_grad_(true);
  FlatOptimizer optimizer({{{{"p", parameter}}, SgdRule{.lr = 1}}});
  for (const bool overflows : {true, false}) {
    parameter.mutable_grad() = torch::full({3}, scaler.current_scale(), torch::kFloat);
    if (overflows && communicator.rank() == communicator.size() - 1) {
      parameter.mutable_grad()[2] = std::numeric_limits<float>::infinity();
    }
    const bool finite = scaler.unscale(optimizer.gradients());
    expect(finite == !overflows, "every rank hears of an overflow on one");
    if (finite) optimizer.step();
    scaler.update();
    expect(scaler.current_scale() == 32768, "and has the same scale");
    expect(parameter.equal(torch::full({3}, overflows ? 1.0F : 0.0F)), "all skip or none");
  }
}

// float16 over DDP. In a step marked "i" the last rank's loss is so large that only its gradients
// overflow. Prints "scaler", then the scale and the growth tracker after each step.
void check_overflow_through_ddp(Communicator& communicator) {
  Net net;
  DistributedDataParallel ddp(*net, communicator);
  GradScaler scaler(c10::kCPU, &communicator, {.growth_interval = 2});
  std::vector<ParameterGroup> groups{{trainable_parameters(*net), SgdRule{.lr = 0.01}}};
  FlatOptimizer optimizer(std::move(groups), &ddp);
  const std::vector<torch::Tensor> parameters = net->parameters();
  std::cout << std::setprecision(17) << "scaler";
  for (const char kind : std::string(".i...i..ii..")) {
    std::vector<torch::Tensor> before;
    for (const torch::Tensor& each : parameters) before.push_back(each.detach().clone());
    ddp.zero_grad();
    torch::Tensor loss;
    {
      const Autocast half(c10::kCPU, torch::kHalf);
      loss = ddp(torch::randn({4, 20})).to(torch::kFloat).square().mean();
    }
    const bool is_large = kind == 'i' && communicator.rank() == communicator.size() - 1;
    scaler.scale(is_large ? loss * 1e20F : loss).backward();
    const bool finite = scaler.unscale(optimizer.gradients());
    expect(finite == (kind == '.'), "every rank finds what one of them had");
    if (finite) optimizer.step();
    scaler.update();
    for (std::size_t i = 0; i < before.size(); ++i) {
      expect(before[i].equal(parameters[i]) == !finite, "all are updated, or none is");
    }
    std::cout << ' ' << scaler.current_scale() << ' ' << scaler.growth_tracker();
  }
  std::cout << std::endl;
  expect_equal_on_all_ranks(communicator, parameters);
}

void run_ddp(Communicator& communicator) {
  check_overflow_on_one_rank(communicator);
  check_overflow_through_ddp(communicator);
  for (const bool by_kind : {false, true}) {
    check_with_ddp(communicator, SgdRule{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}, by_kind);
    check_with_ddp(communicator, AdamRule{.weight_decay = 0.1, .amsgrad = true}, by_kind);
    check_with_ddp(communicator, AdamWRule{.weight_decay = 0.1}, by_kind);
  }
}

}  // namespace

int program(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::string mode = argc > 1 ? argv[1] : "";
  return run_worker("optim_worker", mode, [&](Communicator& communicator) {
    torch::manual_seed(static_cast<std::uint64_t>(communicator.rank()));
    if (mode == "rules") {
      for (std::string line; std::getline(std::cin, line);) {
        if (line.starts_with("autocast ")) {
          run_autocast_case(line);
        } else {
          line.starts_with("scaler ") ? run_scaler_case(line) : run_case(line);
        }
      }
    } else if (mode == "checks") {
      run_checks();
      check_unread_overflows(torch::kCPU);
      check_calls_of_a_step();
      check_calls_after_a_late_parameter();
      check_clipping_of_two_dtypes();
      run_amp_checks();
    } else if (mode == "ddp") {
      run_ddp(communicator);
    } else {
      return false;
    }
    return true;
  });
}

}  // namespace optim_worker
