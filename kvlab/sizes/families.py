"""Model types: those whose cache the rules here describe, those that keep none, and fields no rule understands."""

_PLAIN = """
llama code_llama mistral mistral3 ministral3 mixtral qwen qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl
qwen2_5_vl_text qwen2_audio qwen2_5_omni qwen2_5_omni_thinker qwen2_5_omni_text qwen3 qwen3_moe qwen3_vl qwen3_vl_text
qwen3_vl_moe qwen3_vl_moe_text qwen3_omni_moe qwen3_omni_moe_thinker qwen3_omni_moe_text gemma gpt2 gptj gpt_neox
gpt_bigcode codegen bloom opt mpt dbrx phi phi-msft phi3 phi3_v phi3small phimoe falcon RefinedWeb RefinedWebModel
baichuan internlm internlm2 internlm3 chatglm Yi yi stablelm stablelm_epoch starcoder2 cohere olmo olmo2 olmoe granite
granitemoe granitemoeshared exaone smollm3 arcee apertus helium glm glm4 glm4_moe glm4v glm4v_text glm4v_moe ernie4_5
ernie4_5_moe hunyuan hunyuan_v1_dense hunyuan_v1_moe nemotron nemotron-nas deci openelm minicpm minicpmv minimax_m2
seed_oss dots1 solar bitnet persimmon llava llava_next llava_onevision internvl internvl_chat internlm_xcomposer2
idefics2 idefics3 smolvlm aria pixtral molmo ovis paligemma xglm biogpt trocr aquila orion xverse arctic jais
voxtral exaone4_5 exaone4_5_text minicpmo
"""
_WINDOWED = """
gpt_neo gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text cohere2 exaone4 olmo3 gpt_oss ministral
vaultgemma llama4 llama4_text mimo_v2_flash mimo_v2 afmoe cwm
"""
_LATENT = """
deepseek_v2 deepseek_v3 deepseek_v32 deepseek_vl_v2 kimi_k2 kimi_k25 kimi_vl minicpm3 longcat_flash glm4_moe_lite
glm_moe_dsa mistral4
"""
_RECURRENT = """
jamba bamba zamba zamba2 falcon_h1 granitemoehybrid nemotron_h lfm2 lfm2_moe lfm2_vl recurrent_gemma qwen3_next qwen3_5
qwen3_5_text qwen3_5_moe qwen3_5_moe_text kimi_linear minimax minimax_text_01 minimax_m1 mamba mamba2 falcon_mamba
olmo_hybrid bailing_hybrid
"""
_WITH_ENCODER = """
t5 mt5 umt5 switch_transformers longt5 bart mbart m2m_100 nllb-moe marian pegasus whisper blenderbot speech_to_text
mllama mllama_text_model t5gemma
"""
KNOWN = frozenset(f"{_PLAIN} {_WINDOWED} {_LATENT} {_RECURRENT} {_WITH_ENCODER}".split())

_ENCODERS = """
bert roberta xlm-roberta xlm-roberta-xl camembert distilbert electra albert deberta deberta-v2 mpnet modernbert
nomic_bert longformer big_bird funnel layoutlm layoutlmv2 layoutlmv3 convbert esm ernie megatron-bert roformer
nystromformer squeezebert mobilebert eurobert vit clip siglip siglip2 dinov2 dinov3_vit deit beit swin convnext resnet
wav2vec2 hubert wavlm detr segformer sam
"""
ENCODERS = frozenset(_ENCODERS.split())

TYPES_NOT_UNDERSTOOD = frozenset(
    ("deepseek_v4", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "phi4flash", "hymba", "plamo2")
)
NOT_UNDERSTOOD = {
    "compress_ratios": "a compressed cache is not understood",
    "index_kpool": "compressed index keys are not understood",
    "ssm_cfg": "a state-space model in the first layout of mamba_ssm is not understood",
    "rescale_every": "RWKV's state is not understood",
    "cross_layer_interval": "cross-attention between the layers (Idefics) is not understood",
}
# Fields that say a layer is recurrent; some other field must say which layers are.
RECURRENT_FIELDS = (
    *("linear_num_value_heads", "conv_L_cache", "mamba_d_state", "mamba_num_heads", "mamba_d_ssm", "lru_width"),
    "conv1d_width",
)
# Fields that bound what is seen in some models, by rules of their own.
IGNORED = ("window_size", "attention_window", "local_attention_window", "sparse_config")
