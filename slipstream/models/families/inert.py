"""Fields of config.json without influence on the mathematics of sampling and training as they are done here."""

INERT = frozenset(
    (
        *("architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "name_or_path"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "tokenizer_class"),
        # of fresh weights, and of dropout, which is off
        *("initializer_range", "initializer_factor"),
        *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "classifier_dropout"),
        # of other losses, and of what a forward pass returns
        *("router_aux_loss_coef", "output_router_logits", "router_jitter_noise", "output_attentions", "output_hidden_states"),
        *("return_dict", "use_return_dict", "problem_type", "id2label", "label2id", "num_labels", "keys_to_ignore_at_inference"),
        # of how other programs compute the same
        *("use_cache", "cache_implementation", "pretraining_tp", "gradient_checkpointing", "is_llama_config"),
        *("_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "transformers.js_config"),
        *("unsloth_version", "unsloth_fixed"),
        # of sampling; generation_config.json is the place for these
        *("task_specific_params", "max_length", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty"),
    )
)
